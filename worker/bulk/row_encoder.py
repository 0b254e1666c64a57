"""Encode rows of a shard as they end on the devices, in threads of the worker.

Input: rows that have ended. Output: their samples, or the error of the row, in a queue. This module
stores nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from imagefleet.shared.bulk.plan import ShardRow
from imagefleet.shared.errors import ImagefleetError, WorkerError
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.bulk.row_conversion import encode_samples
from imagefleet.worker.bulk.samples import Sample
from imagefleet.worker.bulk.shard_context import ShardContext
from imagefleet.worker.devices.row_backlog import RowWork

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """The samples or the error of one row."""

    work: RowWork
    samples: Sequence[Sample] = ()
    error: ImagefleetError | None = None


class RowEncoder:
    """Encodes the rows of one shard. Any thread may call `submit`."""

    def __init__(
        self,
        context: ShardContext,
        rows: Mapping[int, ShardRow],
        request_of: Callable[[ShardRow], JobRequest],
    ) -> None:
        """Store the arguments: the rows by number, and a function that says what a row asks for."""
        self.results: SimpleQueue[RowResult] = SimpleQueue()
        self._context = context
        self._rows = rows
        self._request_of = request_of

    def submit(self, work: RowWork) -> None:
        """Encode a row that has ended. Its result comes in `results`."""
        self._context.encoders.submit(self._encode, work)

    def _encode(self, work: RowWork) -> None:
        try:
            row = self._rows[work.row]
            samples = encode_samples(
                work, row, self._request_of(row), work.wait_for_images(), self._context.engine
            )
            self.results.put(RowResult(work=work, samples=samples))
        except ImagefleetError as error:
            self.results.put(RowResult(work=work, error=error))
        except Exception as error:
            log.exception("row %d failed with an unexpected error", work.row)
            failure = WorkerError(f"{type(error).__name__}: {error}")
            self.results.put(RowResult(work=work, error=failure))
