"""Decide which waiting image takes which free slot of which stream, under continuous batching.

A stream is a group of slots that advances by itself, usually those of one device. Input: claimed
slots, in the order in which the claims gave them. Output: the newcomers of a stream. The module
uses neither threads nor an engine nor a clock: it counts steps. One object serves one device loop,
under its lock, or a simulation.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from imagefleet.worker.devices.slots import Slot
from imagefleet.worker.engine.contract.interface import Shape


@dataclass(eq=False)
class _StreamSlots:
    """The slots of one stream."""

    capacity: int
    running: dict[int, Slot] = field(default_factory=dict)
    steps_left: dict[int, int] = field(default_factory=dict)
    exclusive: bool = False
    """Whether it runs a part of a failed batch. Nothing joins it then."""
    reserved: Shape | None = None
    """The shape that gets the stream once it is empty. Until then nothing joins it."""

    @property
    def shape(self) -> Shape | None:
        """The shape of the running slots; None if there are none."""
        return next((slot.work.shape for slot in self.running.values()), None)

    def is_young(self) -> bool:
        """Return whether no slot has done a step."""
        return all(self.steps_left[at] == slot.spec.steps for at, slot in self.running.items())


class SlotAssigner:
    """Assigns waiting slots to the free slots of all streams of a worker.

    Slots start in the order in which they were claimed, with these exceptions. A stream runs one
    shape at a time, so a slot that finds no place is passed over by slots of other shapes; by as
    many as the worker has slots, then a stream is reserved for its shape. Work that runs alone
    waits until all streams are empty, and everything else until it has ended.
    """

    def __init__(self, streams: int, capacity: int) -> None:
        """
        Args:
            streams: Number of streams.
            capacity: Slots of each stream.
        """
        self._streams = [_StreamSlots(capacity) for _ in range(streams)]
        self._ready: deque[Slot] = deque()
        self._retries: deque[Sequence[Slot]] = deque()
        self._overtakes = 0
        """Slots that started before the head of `_ready`, since it is the head."""

    @property
    def capacity(self) -> int:
        """Slots of all streams."""
        return sum(stream.capacity for stream in self._streams)

    def add(self, slots: Iterable[Slot]) -> None:
        """Let claimed slots wait for a place."""
        self._ready.extend(slots)
        self._reserve()

    def retry(self, slots: Sequence[Slot]) -> None:
        """Let a part of a failed batch run again, by itself on one stream."""
        self._retries.append(slots)

    def running(self, stream: int) -> dict[int, Slot]:
        """Return the slots of a stream that run, by their number."""
        return self._streams[stream].running

    @property
    def has_waiting(self) -> bool:
        """Whether any slot waits for a place."""
        return bool(self._ready or self._retries)

    @property
    def has_running(self) -> bool:
        """Whether any slot runs."""
        return any(stream.running for stream in self._streams)

    def take(self, index: int) -> dict[int, Slot]:
        """Assign waiting slots to the free slots of a stream. Return the newcomers by number."""
        self._drop_ended()
        stream = self._streams[index]
        if not stream.running:
            stream.exclusive = False
        newcomers = self._take_retry(stream) or self._take_ready(stream)
        stream.running.update(newcomers)
        stream.steps_left.update({at: slot.spec.steps for at, slot in newcomers.items()})
        if newcomers:
            stream.reserved = None
        self._reserve()
        return newcomers

    def stepped(self, index: int, left: Mapping[int, int] | None = None) -> None:
        """Note that a stream advances. `left` are the steps left by slot; None: one less each."""
        before = self._streams[index].steps_left
        before.update({at: steps - 1 for at, steps in before.items()} if left is None else left)

    def release(self, index: int, number: int) -> None:
        """Free a slot: its steps are done, or nobody wants its image any more."""
        stream = self._streams[index]
        del stream.running[number], stream.steps_left[number]

    def slots_to_claim(self, lead_steps: float = 0.0) -> tuple[int, Shape | None]:
        """Return how many more slots to claim, and the shape that the claim should prefer.

        Counted are the slots that are free or will be within `lead_steps` steps, or whose images
        nobody wants any more, without those that waiting slots will take. A stream that has
        just begun is filled up with its own shape, as a batch is, unless a place is open to any
        shape. So is one beside which slots of other shapes wait already: more of these would only
        be kept from other workers. Otherwise whose turn it is decides, and no shape is preferred.
        """
        if self._lone_work() is not None or self._head_is_alone():
            return 0, None
        open_slots: Counter[Shape | None] = Counter()
        young, parts = None, len(self._retries)
        for stream in self._streams:
            if stream.exclusive or stream.reserved is not None:
                continue
            if parts and not stream.running:  # a part of a failed batch takes it
                parts -= 1
                continue
            soon = sum(
                stream.steps_left[at] <= lead_steps or slot.work.ended
                for at, slot in stream.running.items()
            )
            free = stream.capacity - len(stream.running)
            will_be_empty = soon == len(stream.running)
            open_slots[None if will_be_empty else stream.shape] += soon + free
            if free and stream.running and not will_be_empty and stream.is_young():
                young = stream.shape
        find_no_place = self._fill(open_slots)
        preferred = young if not open_slots[None] else None
        if find_no_place and open_slots.total():
            [(preferred, _)] = open_slots.most_common(1)
        wanted = open_slots.total() if preferred is None else open_slots[preferred]
        return min(wanted, max(0, 2 * self.capacity - len(self._ready))), preferred

    def pop_waiting(self) -> list[Slot]:
        """Remove and return all slots that have not started."""
        waiting = [*self._ready, *(slot for group in self._retries for slot in group)]
        self._ready.clear()
        self._retries.clear()
        self._reserve()
        return waiting

    def _fill(self, open_slots: Counter[Shape | None]) -> int:
        """Remove the places that the waiting slots take from `open_slots`, which counts them by
        shape; None counts those that any shape may take. Return how many find none."""
        find_no_place = 0
        for slot in self._ready:
            places = [shape for shape in (slot.work.shape, None) if open_slots[shape] > 0]
            if places:
                open_slots[places[0]] -= 1
            else:
                find_no_place += 1
        return find_no_place

    def _take_retry(self, stream: _StreamSlots) -> dict[int, Slot]:
        if stream.running or not self._retries or self._lone_work() is not None:
            return {}
        stream.exclusive = True
        group = self._retries.popleft()
        if len(group) > stream.capacity:  # images that were being decoded failed, too
            self._retries.appendleft(group[stream.capacity :])
        return dict(enumerate(group[: stream.capacity]))

    def _take_ready(self, stream: _StreamSlots) -> dict[int, Slot]:
        newcomers: dict[int, Slot] = {}
        if stream.exclusive or (stream.reserved is not None and stream.running):
            return newcomers
        shape = stream.shape or stream.reserved
        for number in range(stream.capacity):
            if number in stream.running:
                continue
            slot = self._pop_fitting(shape, newcomers)
            if slot is None:
                break
            shape = slot.work.shape
            newcomers[number] = slot
        return newcomers

    def _pop_fitting(self, shape: Shape | None, newcomers: dict[int, Slot]) -> Slot | None:
        """Remove and return the first waiting slot that may join a stream of `shape`."""
        lone = self._lone_work() or next((s.work for s in newcomers.values() if s.work.alone), None)
        if (
            self._head_is_alone()
            and self._ready[0].work is not lone
            and (newcomers or self.has_running)
        ):
            return None
        for at, slot in enumerate(self._ready):
            if lone is not None and slot.work is not lone:
                continue
            if slot.work.alone and at and slot.work is not lone:
                continue
            if shape is None or slot.work.shape == shape:
                self._overtakes = self._overtakes + 1 if at else 0
                del self._ready[at]
                return slot
        return None

    def _head_is_alone(self) -> bool:
        return bool(self._ready) and self._ready[0].work.alone

    def _lone_work(self) -> object | None:
        """Return the work that runs alone, if it runs."""
        running = (slot.work for stream in self._streams for slot in stream.running.values())
        return next((work for work in running if work.alone), None)

    def _drop_ended(self) -> None:
        """Forget waiting slots that nobody wants any more."""
        if any(slot.work.ended for slot in self._ready):
            self._ready = deque(slot for slot in self._ready if not slot.work.ended)
        groups = ([slot for slot in group if not slot.work.ended] for group in self._retries)
        self._retries = deque(group for group in groups if group)
        self._end_reservations()

    def _end_reservations(self) -> None:
        """End the reservations for which no slot waits any more, wherever the last one went."""
        waiting = {slot.work.shape for slot in self._ready}
        for stream in self._streams:
            if stream.reserved not in waiting:
                stream.reserved = None

    def _reserve(self) -> None:
        """Reserve a stream for the shape of the head of the waiting slots if it finds no place."""
        self._end_reservations()
        if not self._ready:
            self._overtakes = 0
            return
        head = self._ready[0].work
        shapes = [stream.reserved or stream.shape for stream in self._streams]
        if None in shapes or head.alone:
            return
        if head.shape in shapes and self._overtakes < self.capacity:
            return
        others = [
            stream
            for stream in self._streams
            if stream.reserved is None and stream.shape != head.shape and not stream.exclusive
        ]
        if others:
            first = min(others, key=lambda stream: max(stream.steps_left.values(), default=0))
            first.reserved = head.shape
            self._overtakes = 0
