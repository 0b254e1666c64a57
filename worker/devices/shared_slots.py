"""The slots of all streams, shared between the thread that claims and the threads of the streams.

Input: claimed slots. Output: newcomers for the thread of each stream, which notes what became of
its slots. This module also says who pauses: a stream whose failure is to be judged takes no
newcomers, and while the devices are quarantined no stream does. It uses neither an engine nor
queues.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from imagefleet.worker.devices.slot_assigner import SlotAssigner
from imagefleet.worker.devices.slots import Slot
from imagefleet.worker.engine.contract.interface import Shape

_MAX_DECODING: Final = 2
"""Images for each slot of a stream that may be decoded or copied at a time: memory is bounded."""


class SharedSlots:
    """Safe to share between threads."""

    def __init__(self, streams: int, capacity: int) -> None:
        """
        Args:
            streams: Number of streams.
            capacity: Slots of each stream.
        """
        self._capacity = capacity
        self._assigner = SlotAssigner(streams, capacity)
        self._steps: list[dict[Slot, int]] = [{} for _ in range(streams)]
        """Slots on the devices by stream, and the steps that each has done."""
        self._decoding = [0] * streams
        self._progress = [0] * streams
        self._active = [False] * streams
        """Whether the thread of a stream does anything but wait for work."""
        self._failed: list[list[Slot]] = [[] for _ in range(streams)]
        """Failed slots by stream, until they are judged."""
        self._claiming = False
        self._lead_steps = 0.0
        """The lead of the thread that waits for free slots."""
        self._quarantined = False
        self._stopping = False
        lock = threading.RLock()  # a signal handler may interrupt the thread that holds it
        self._changed = threading.Condition(lock)
        """Notified when the thread of a stream may have something to do."""
        self._claimable = threading.Condition(lock)
        """Notified when there may be something to claim."""

    def stop(self) -> None:
        """Let the threads end once nothing runs. What waits stays for `pop_waiting`."""
        with self._changed:
            self._stopping = True
            self._notify_all()

    def wait_for_free_slots(
        self, lead_steps: float, timeout_s: float
    ) -> tuple[int, Shape | None] | None:
        """Wait until slots are free, or will be within `lead_steps` steps.

        Returns:
            How many, and the shape that the claim should prefer. Call `add` afterwards. None: it
            did not happen in time.
        """

        with self._claimable:
            self._lead_steps = lead_steps
            may_claim = self._claimable.wait_for(
                lambda: self._stopping or self._has_free_slots(), timeout_s
            )
            if not may_claim or self._stopping:
                return None
            self._claiming = True
            return self._assigner.slots_to_claim(lead_steps)

    def add(self, slots: Iterable[Slot]) -> None:
        """Let claimed slots wait for a place."""
        with self._changed:
            self._claiming = False
            self._assigner.add(slots)
            self._notify_all()

    def retry(self, slots: Sequence[Slot]) -> None:
        """Let a part of a failed batch run again, by itself on one stream."""
        with self._changed:
            self._assigner.retry(slots)
            self._notify_all()

    def wait_for_work(self, stream: int) -> Mapping[int, Slot] | None:
        """Wait until a stream has slots that run, or failed slots to be judged.

        Returns:
            Its newcomers by number. None: the thread of the stream should end.
        """
        newcomers: Mapping[int, Slot] = {}

        def has_work() -> bool:
            nonlocal newcomers
            if not (self._quarantined or self._stopping or self._failed[stream]):
                newcomers = self._assigner.take(stream)
            to_judge = bool(self._failed[stream]) and not self._quarantined
            return bool(self._assigner.running(stream)) or to_judge

        with self._changed:
            self._active[stream] = False
            if self._quarantined or self._stopping or self._assigner.has_waiting:
                self._changed.notify_all()  # else idle streams would wake at each step of others
            self._changed.wait_for(lambda: has_work() or self._is_over())
            if self._is_over():
                self._changed.notify_all()
                return None
            self._active[stream] = True
            self._steps[stream].update(dict.fromkeys(newcomers.values(), 0))
            self._progress[stream] += 1
            if newcomers and self._has_free_slots():
                self._claimable.notify_all()
            return newcomers

    def running(self, stream: int) -> dict[int, Slot]:
        """Return the running slots of a stream by number."""
        with self._changed:
            return dict(self._assigner.running(stream))

    def stepped(self, stream: int, done: Mapping[Slot, int]) -> dict[Slot, int]:
        """Note that a stream takes a step, and how many steps its slots have done by now.

        Returns:
            The same of all slots on the devices.
        """
        with self._changed:
            running = self._assigner.running(stream).items()
            left = {number: slot.spec.steps - done[slot] for number, slot in running}
            self._assigner.stepped(stream, left)
            self._steps[stream].update(done)
            self._progress[stream] += 1
            if self._has_free_slots():  # else the thread that claims would wake at each step
                self._claimable.notify_all()
            return {slot: steps for each in self._steps for slot, steps in each.items()}

    def drop(self, stream: int, number: int) -> None:
        """Free a slot whose image nobody wants any more, or that failed when it started."""
        with self._changed:
            self._steps[stream].pop(self._release(stream, number), None)

    def wait_to_decode(self, stream: int) -> None:
        """Wait until a stream may decode one more image."""
        limit = _MAX_DECODING * self._capacity
        with self._changed:
            self._changed.wait_for(lambda: self._decoding[stream] < limit)

    def begin_decoding(self, stream: int, number: int) -> None:
        """Free a slot whose image is being decoded."""
        with self._changed:
            slot = self._release(stream, number)
            self._steps[stream][slot] = slot.spec.steps
            self._decoding[stream] += 1

    def end_decoding(self, stream: int, slot: Slot, *, failed: bool) -> None:
        """Note that an image was delivered, or that it failed and has to be judged."""
        with self._changed:
            self._decoding[stream] -= 1
            self._steps[stream].pop(slot, None)
            self._progress[stream] += 1
            if failed:
                self._failed[stream].append(slot)
            self._notify_all()

    def fail_running(self, stream: int) -> None:
        """Take all running slots of a stream away; they have to be judged."""
        with self._changed:
            for number in list(self._assigner.running(stream)):
                slot = self._release(stream, number)
                self._steps[stream].pop(slot, None)
                self._failed[stream].append(slot)
            self._notify_all()

    def add_failed(self, stream: int, slots: Iterable[Slot]) -> None:
        """Let failed slots of a stream wait to be judged."""
        with self._changed:
            self._failed[stream].extend(slots)
            self._notify_all()

    def pop_failed(self, stream: int) -> list[Slot]:
        """Remove and return the failed slots of a stream."""
        with self._changed:
            failed, self._failed[stream] = self._failed[stream], []
            return failed

    def begin_quarantine(self, stream: int | None) -> list[Slot] | None:
        """Stop the claims and all streams, and wait until nothing is on the devices.

        Args:
            stream: The stream whose thread calls; None if it is another thread.

        Returns:
            The slots that waited, among them failed ones of other streams. None if another thread
            quarantines the worker already.
        """

        def is_quiet() -> bool:
            others = (active for each, active in enumerate(self._active) if each != stream)
            return not (self._claiming or any(others) or any(self._decoding))

        with self._changed:
            if self._quarantined:
                return None
            self._quarantined = True
            self._changed.wait_for(is_quiet)
            failed = [slot for each in range(len(self._failed)) for slot in self.pop_failed(each)]
            return [*self._assigner.pop_waiting(), *failed]

    def end_quarantine(self) -> None:
        """Let the claims and the streams go on."""
        with self._changed:
            self._quarantined = False
            self._notify_all()

    def pop_waiting(self) -> list[Slot]:
        """Remove and return the slots that have not started."""
        with self._changed:
            waiting = self._assigner.pop_waiting()
            self._notify_all()
            return waiting

    def on_devices(self, stream: int | None = None) -> list[Slot]:
        """Return the slots between the first step and the last pixel, of one or of all streams."""
        with self._changed:
            chosen = self._steps if stream is None else [self._steps[stream]]
            return [slot for each in chosen for slot in each]

    def progress_count(self, stream: int, *, checking: bool) -> int | None:
        """Return a number that grows while a stream makes progress; None while it is idle.

        Args:
            checking: Whether the devices are being checked during a quarantine.
        """
        with self._changed:
            active = self._active[stream] and not self._quarantined
            is_idle = not (self._steps[stream] or active or checking)
            return None if is_idle else self._progress[stream]

    def is_idle(self) -> bool:
        """Return whether nothing is on the devices."""
        with self._changed:
            return not any(self._active) and not any(self._decoding)

    def _has_free_slots(self) -> bool:
        return not self._quarantined and self._assigner.slots_to_claim(self._lead_steps)[0] > 0

    def _release(self, stream: int, number: int) -> Slot:
        slot = self._assigner.running(stream)[number]
        self._assigner.release(stream, number)
        if not self._assigner.running(stream):
            self._notify_all()  # work that runs alone may have waited for an empty stream
        return slot

    def _is_over(self) -> bool:
        quiet = not any(self._active) and not any(self._decoding) and not any(self._failed)
        return self._stopping and quiet and not self._assigner.has_running

    def _notify_all(self) -> None:
        self._changed.notify_all()
        self._claimable.notify_all()
