"""Decide after a failure on the devices whether a job of the batch is to blame, or this host.

Both device loops ask this. It uses the health check, and what became of jobs that failed here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from imagefleet.worker.devices.failed_slots import is_job_error
from imagefleet.worker.devices.failure_streak import FailureStreak
from imagefleet.worker.devices.health_check import HealthCheck
from imagefleet.worker.engine.contract.interface import Shape, Stream


@dataclass(frozen=True)
class HostFault:
    """Why this host is to blame, and when it is healthy again."""

    reason: str
    check: Callable[[], bool] | None = None
    """It returns whether the devices are healthy; None: `HealthCheck.devices_ok` does."""


STORE_FAILED: Final = HostFault("the store fails its health check")


def find_host_fault(
    error: BaseException,
    shape: Shape,
    streak: FailureStreak,
    health: HealthCheck,
    *,
    stream: Stream | None = None,
    await_devices: Callable[[], None] = lambda: None,
) -> HostFault | None:
    """Return why this host is to blame for a batch that failed; None if a job of it is.

    Args:
        shape: that of the batch.
        stream: the one that failed, and is empty now. None: there are no streams.
        await_devices: waits for images that are still copied. They would end the streak.
    """
    if is_job_error(error):
        return None
    if not (health.devices_ok() if stream is None else health.stream_ok(stream)):
        return HostFault(f"the devices failed: {error}")
    if streak.is_long():
        await_devices()
        if proof := streak.proof():
            return HostFault(f"{proof}: {error}", _never_healthy)
    if streak.needs_whole_batch():
        await_devices()
        if not health.whole_batch_ok(shape, stream):
            reason = f"a whole batch of the known image fails: {error}"
            return HostFault(reason, partial(health.whole_batch_ok, shape))
        streak.whole_batch_passed()
    return None


def _never_healthy() -> bool:
    """Return False: no check of this worker can outweigh what others have shown."""
    return False
