"""Open the input and the destination of a new bulk run, and find the workers that would make it.

Input: the user's arguments. Output: `RunInputs`. Nothing is written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefleet.producer.bulk.destination import open_new_destination
from imagefleet.producer.bulk.inputs import Rows, TableSource, find_sources
from imagefleet.producer.bulk.plan_builder import DatasetSpec
from imagefleet.producer.bulk.worker_formats import check_formats, living_workers
from imagefleet.producer.connection.connection import Connection
from imagefleet.shared.jobs.offers import Offer, unguided_scale_of
from imagefleet.shared.jobs.worker_status import WorkerStatus
from imagefleet.shared.storage import ObjectStore


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """What a run reads, where it writes, and what the fleet offers."""

    url: str
    """It is the URL of the destination, which every host can open."""
    store: ObjectStore
    """It is the store of the destination."""
    offers: dict[str, Offer]
    sources: Sequence[TableSource]
    workers: Sequence[WorkerStatus]
    """The living workers that serve the model of the run, or do not say which they serve."""

    @classmethod
    def open(
        cls,
        connection: Connection,
        rows: Rows,
        destination: str | Path,
        spec: DatasetSpec,
        *,
        input_format: str | None,
        delimiter: str | None,
        encoding: str | None,
    ) -> "RunInputs":
        """Open the tables of `rows` and the destination.

        Raises:
            InvalidRequest: an argument is wrong, or no living worker can write the formats.
            ConfigurationError, StorageDenied, StorageUnavailable: the input or the destination
                cannot be opened.
        """
        url, store = open_new_destination(destination, connection)
        model, offers = spec.defaults.model, connection.offers()
        sources = find_sources(
            rows,
            input_format,
            url,
            delimiter=delimiter,
            encoding=encoding,
            unguided_scale=unguided_scale_of(offers, model),
        )
        workers = living_workers(model, offers, connection.worker_statuses())
        check_formats(spec, workers)
        return cls(url=url, store=store, offers=offers, sources=sources, workers=workers)
