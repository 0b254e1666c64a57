"""Simulate the devices of one host under three policies, with the worker's own scheduling code.

Input: queues, and how long the devices take. Output: when each job began and ended. Time is
simulated, so hours of a host take seconds. Host work takes no time here, as on a host whose threads
keep up with its devices.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass

from benchmarks.simulation.queues import SimulatedJob, SimulatedQueues
from imagefleet.worker.devices.batching import next_batch
from imagefleet.worker.devices.slot_assigner import SlotAssigner
from imagefleet.worker.devices.slots import Slot
from imagefleet.worker.engine.contract.interface import Shape

_LEAD_S = 0.05
"""How early the next claim is made: the least lead of `PrefetchTimer`."""
_POLL_S = 0.02
"""Seconds between two claims while devices are free: the default of `poll_s`."""
_MAX_DELIVERIES = 4


@dataclass(frozen=True, kw_only=True)
class DeviceTimes:
    """How long the devices of a host take, for images of 512x512.

    The defaults are the compiler's estimates of Stable Diffusion 1.4 on v5e-8 (docs/tpu.md).
    """

    devices: int = 8
    per_device_batch: int = 1
    step_s: float = 0.0224
    """Of a step with one image on each device."""
    more_step_s: float = 0.0121
    """By how much each further image on a device makes the step longer."""
    decode_s: float = 0.065
    """Of decoding one image on each device."""
    begin_s: float = 0.0015
    """Of the text encoders, one image on each device."""

    @property
    def capacity(self) -> int:
        """Images of a full batch."""
        return self.devices * self.per_device_batch

    def step(self, shape: Shape) -> float:
        """Return the seconds of a step in which every slot is filled."""
        return (self.step_s + (self.per_device_batch - 1) * self.more_step_s) * _pixels(shape)

    def decode(self, shape: Shape, images: int) -> float:
        """Return the seconds in which a device decodes `images`."""
        return images * self.decode_s * _pixels(shape)

    def ideal_rate(self, mean_steps: float, shape: Shape) -> float:
        """Return the images a second of devices that never wait and decode full batches."""
        count = self.per_device_batch
        each = mean_steps * self.step(shape) + self.decode(shape, count) + count * self.begin_s
        return self.capacity / each


def _pixels(shape: Shape) -> float:
    return shape.height * shape.width / 512**2


def simulate_static(queues: SimulatedQueues, times: DeviceTimes) -> None:
    """Run whole batches: the policy `static`."""
    now = 0.0
    waiting: deque[Slot] = deque()

    def claim(at_s: float) -> None:
        shape = waiting[0].work.shape if waiting else None
        steps = max((slot.spec.steps for slot in waiting), default=0)
        wanted = times.capacity - len(waiting)
        waiting.extend(queues.claim(at_s, wanted, prefer=shape, batch_steps=steps))

    while True:
        claim(now)
        batch = next_batch(waiting, times.capacity, _MAX_DELIVERIES)
        if not batch:
            if queues.next_arrival_s is None:
                return
            now = _next_poll(max(now, queues.next_arrival_s))
            continue
        shape = batch[0].work.shape
        count = times.per_device_batch
        first_step = now + times.begin_s * count
        denoised = first_step + times.step(shape) * max(slot.spec.steps for slot in batch)
        now = denoised + times.decode(shape, count)
        for slot in batch:
            _note(slot, first_step, now)
        claim(denoised - _LEAD_S)


class _Stream:
    """One group of slots that advances by itself: one device, or the whole host."""

    def __init__(self, slots: int) -> None:
        self.left: dict[int, int] = {}
        self.held: list[tuple[Slot, int]] = []
        """Finished slots that are not decoded, and the step at which each was finished."""
        self.steps = 0
        self.slots = slots
        self.busy = False


class ContinuousHost:
    """Simulates the policy `continuous`.

    With `streams` each device takes steps and decodes by itself. Without, one program spans all
    devices (lockstep), and decoding one image holds all of them; finished slots then wait until
    `hold` of them are decoded together, at most for `hold_steps` steps.
    """

    def __init__(
        self,
        queues: SimulatedQueues,
        times: DeviceTimes,
        *,
        streams: bool,
        hold: int = 1,
        hold_steps: int = 16,
    ) -> None:
        self._queues, self._times = queues, times
        count = times.devices if streams else 1
        slots = times.per_device_batch if streams else times.capacity
        self._each_alone = streams
        self._hold, self._hold_steps = (hold, hold_steps) if not streams else (1, 0)
        self._streams = [_Stream(slots) for _ in range(count)]
        self._assigner = SlotAssigner(count, slots)
        self._events: list[tuple[float, int]] = []
        """When a stream ends what it does; -1 is the thread that claims."""

    def run(self) -> None:
        """Run until all jobs are done."""
        self._poll_at_next_arrival(0.0)
        while self._events:
            now, index = heapq.heappop(self._events)
            if index >= 0:
                self._streams[index].busy = False
            self._claim(now)
            for each in range(len(self._streams)):
                if not self._streams[each].busy:
                    self._advance(each, now)
            if index < 0:
                self._poll_at_next_arrival(now)

    def _poll_at_next_arrival(self, now: float) -> None:
        if (arrival := self._queues.next_arrival_s) is not None:
            heapq.heappush(self._events, (_next_poll(max(now, arrival)), -1))

    def _claim(self, now: float) -> None:
        lead_steps = _LEAD_S / self._times.step_s
        while True:
            wanted, shape = self._assigner.slots_to_claim(lead_steps)
            claimed = self._queues.claim(now, wanted, prefer=shape)
            if not claimed:
                return
            self._assigner.add(claimed)

    def _advance(self, index: int, now: float) -> None:
        """Let a stream decode what is due, take newcomers and do a step."""
        stream = self._streams[index]
        now = self._decode(index, now)
        newcomers = self._assigner.take(index)
        if newcomers:
            count = len(newcomers) if self._each_alone else self._times.per_device_batch
            now += count * self._times.begin_s
        for number, slot in newcomers.items():
            stream.left[number] = slot.spec.steps
            _job(slot).started_s = now
        if not stream.left:
            return
        running = self._assigner.running(index)
        shape = next(iter(running.values())).work.shape
        now += self._times.step(shape)
        stream.steps += 1
        self._assigner.stepped(index)
        for number in list(stream.left):
            stream.left[number] -= 1
            if not stream.left[number]:
                stream.held.append((running[number], stream.steps))
                self._assigner.release(index, number)
                del stream.left[number]
        stream.busy = True
        heapq.heappush(self._events, (now, index))

    def _decode(self, index: int, now: float) -> float:
        stream = self._streams[index]
        held = stream.held
        if not held:
            return now
        waited = stream.steps - held[0][1]
        if stream.left and len(held) < self._hold and waited < self._hold_steps:
            return now
        count = len(held) if self._each_alone else self._times.per_device_batch
        now += self._times.decode(held[0][0].work.shape, count)
        for slot, _ in held:
            _note(slot, _job(slot).started_s, now)
        held.clear()
        return now


def _job(slot: Slot) -> SimulatedJob:
    assert isinstance(slot.work, SimulatedJob)
    return slot.work


def _note(slot: Slot, started_s: float, finished_s: float) -> None:
    job = _job(slot)
    job.started_s, job.finished_s = started_s, finished_s


def _next_poll(now_s: float) -> float:
    return math.ceil(now_s / _POLL_S + 1e-9) * _POLL_S
