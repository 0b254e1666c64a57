"""Make the device loop of the chosen policy, static or continuous batching.

Input: an engine that is warm, and what the loop calls. Output: the loop.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from imagefleet.worker.devices.continuous_loop import ContinuousLoop
from imagefleet.worker.devices.device_loop import DeviceLoop, OnDevicesFailed
from imagefleet.worker.devices.failure_streak import CountSucceeded, FailureStreak, count_none
from imagefleet.worker.devices.health_check import HealthCheck
from imagefleet.worker.devices.slots import Slot
from imagefleet.worker.engine.contract.interface import Engine, Shape, Stream

Loop = DeviceLoop | ContinuousLoop


class SlotSource(Protocol):
    """Claims the slots that the devices run. The dispatcher is one."""

    def next_batch(
        self, free_slots: int | None = None, prefer: Shape | None = None
    ) -> Sequence[Slot]:
        """Return up to `free_slots` slots of one shape, by default a batch."""

    def prefetch_if_due(self, batch: Sequence[Slot], step: int) -> None:
        """Claim the next batch if `batch`, which has done `step` steps, ends soon."""


def make_loop(
    engine: Engine,
    streams: Sequence[Stream],
    source: SlotSource,
    report: Callable[[Mapping[Slot, int]], None],
    poll_s: float,
    health: HealthCheck,
    on_devices_failed: OnDevicesFailed,
    count_succeeded: CountSucceeded = count_none,
) -> Loop:
    """Return a loop of continuous batching if there are streams, else one of whole batches.

    Args:
        engine: Warm.
        streams: Those that the engine has opened, if any.
        source: Claims slots.
        report: Called with the steps that the slots on the devices have done. It must not block.
        poll_s: Seconds between two claims while there is no work.
        health: Checks devices and store.
        on_devices_failed: See `OnDevicesFailed`.
        count_succeeded: See `CountSucceeded`.
    """
    streak = FailureStreak(count_succeeded)
    if streams:
        return ContinuousLoop(
            streams,
            engine.capacity // len(streams),
            source.next_batch,
            report,
            poll_s,
            health,
            on_devices_failed,
            streak,
        )

    def on_step(batch: Sequence[Slot], step: int) -> None:
        report(dict.fromkeys(batch, step))
        source.prefetch_if_due(batch, step)

    return DeviceLoop(engine, source.next_batch, on_step, poll_s, health, on_devices_failed, streak)
