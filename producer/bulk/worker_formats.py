"""Check before a run that a living worker can write the formats of its dataset.

Input: what the workers report of themselves. Output: nothing, or an error that refuses the run.
This module does not read Redis.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from imagefleet.producer.bulk.plan_builder import DatasetSpec
from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.model import ImageFormat
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.worker_names import host_of
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from imagefleet.shared.process.extras import how_to_install

_LEAVING: Final = (WorkerState.DRAINING, WorkerState.LOST)
_MAX_HOSTS: Final = 3
"""A sentence names at most so many hosts."""


def living_workers(
    model: str | None, offers: Mapping[str, Offer], statuses: Iterable[WorkerStatus]
) -> list[WorkerStatus]:
    """Return the workers that live and serve a model, or do not say which they serve."""
    offer = offers.get(model or DEFAULT_MODEL)
    return [
        each
        for each in statuses
        if each.state not in _LEAVING and (offer is None or each.model in ("", offer.model))
    ]


def check_formats(spec: DatasetSpec, workers: Sequence[WorkerStatus]) -> None:
    """Check that one of the `living_workers` can write the formats of a run, if there are any.

    Raises:
        InvalidRequest: none of them can.
    """
    for field, wanted in (("format", spec.format), ("image_format", spec.image_format)):
        without = workers_without(wanted, workers)
        if without and len(without) == len(workers):
            limit = f"no living worker can write it; {how_to_write(wanted, without)}"
            raise InvalidRequest(field, wanted.value, limit)


def workers_without(
    wanted: BulkFormat | ImageFormat, workers: Iterable[WorkerStatus]
) -> list[WorkerStatus]:
    """Return the living workers that say that they cannot write a format. Workers of older releases
    do not say it."""
    return [each for each in workers if each.state not in _LEAVING and not _writes(wanted, each)]


def how_to_write(wanted: BulkFormat | ImageFormat, workers: Sequence[WorkerStatus]) -> str:
    """Return what to do so that a format can be written on the hosts of `workers`."""
    hosts = sorted({host_of(each.worker) for each in workers})
    more = len(hosts) - _MAX_HOSTS
    names = ", ".join([*hosts[:_MAX_HOSTS], *([f"{more} more"] if more > 0 else [])])
    if wanted is BulkFormat.PARQUET:
        return f"on {names} {how_to_install('dataset')}, or use another format"
    return f"use another format, which {names} can write"


def _writes(wanted: BulkFormat | ImageFormat, worker: WorkerStatus) -> bool:
    formats = worker.shard_formats if isinstance(wanted, BulkFormat) else worker.image_formats
    return formats is None or wanted.value in formats
