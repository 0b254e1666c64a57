"""Describe what is claimed: a message that a worker holds, and the queues that it came from."""

import re
from dataclasses import dataclass
from typing import Final

from imagefleet.shared.jobs.celery_message import images_of

_TAG: Final = re.compile(r"[0-9]{1,15}\.[0-9]{1,15}")


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """One message that this worker holds."""

    tag: str
    list_key: str
    message: str
    deliveries: int
    """1 for the first delivery, and one more for each worker that died with the message."""
    attempt: str
    """Name of the attempt that this claim makes. No other claim of the fleet ever has it."""
    too_long: bool = False
    """Whether the message was cut, because it is longer than this worker reads."""

    @property
    def images(self) -> int:
        """How many images the message asks for, as its header says."""
        return images_of(self.message)


def attempt_name(worker: str, tag: str) -> str:
    """Return the name of the attempt that a claim of a worker makes; see `Claimed.attempt`."""
    return f"{worker}/{tag}"


def tag_number(tag: str) -> float:
    """Return a tag as a number, which orders tags by age; 0 for one that no claim made.

    Anybody may write into Redis. What precedes the point is the number of the claim.
    """
    return float(tag) if _TAG.fullmatch(tag) else 0.0


@dataclass(frozen=True, kw_only=True)
class QueueGroup:
    """Queues whose jobs may share a device batch: one compile key under several names."""

    name: str
    queues: tuple[str, ...]
    bulk: bool = False
    """Whether the queues hold shards of datasets instead of jobs."""
    add_ons: tuple[str, ...] = ()
    """Those that this worker holds. It also serves the queues of jobs that need only these."""
