"""Fetch the images and latents that the rows of one shard start from, some rows ahead of the
devices.

Input: rows. Output: the same rows with the pixels or latents in their specs, or abandoned with the
reason. Those of a whole shard would not fit in memory, so the next rows are fetched only as others
are done. This module depends on neither samples nor files.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from imagefleet.shared.errors import ImagefleetError, InputUnavailable, InvalidInput, LeaseLost
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.process.backoff import backoff_s
from imagefleet.worker.bulk.shard_context import ShardContext
from imagefleet.worker.devices.row_backlog import RowWork
from imagefleet.worker.devices.slots import InitInput
from imagefleet.worker.jobs.input_images import addresses_of_inputs, input_field_of

log = logging.getLogger(__name__)

_BATCHES_AHEAD: Final = 3
"""Batches of rows that are fetched, or whose pixels are in memory."""
_MIN_AHEAD: Final = 16
_MAX_RETRIES: Final = 3
"""Retries of an image that cannot be fetched. `bulk retry-failed` tries once more, any time
later."""
_MIN_BACKOFF_S: Final = 1.0
_MAX_BACKOFF_S: Final = 10.0


class RowInputFeed:
    """Feeds rows with their init images and latents to the devices. Its shard's thread uses it."""

    def __init__(
        self,
        context: ShardContext,
        request_of: Callable[[RowWork], JobRequest],
        expect_row: Callable[[RowWork], None],
        add_row: Callable[[RowWork], None],
    ) -> None:
        """
        Args:
            request_of: returns what a row asks for.
            expect_row: notes that the image of a row is about to be fetched.
            add_row: gives a row to the devices once its pixels are there, from any thread.
        """
        self._context = context
        self._request_of = request_of
        self._expect_row = expect_row
        self._add_row = add_row
        self._waiting: deque[RowWork] = deque()
        self._open: set[RowWork] = set()
        self._latest: tuple[Hashable, tuple[InitInput, ...]] | None = None
        """The inputs that were fetched last, and what they are: often all rows name the same."""
        self._max_open = max(_MIN_AHEAD, _BATCHES_AHEAD * context.engine.capacity)

    @property
    def all_started(self) -> bool:
        """Whether no row waits to be fetched."""
        return not self._waiting

    def take(self, works: Iterable[RowWork]) -> list[RowWork]:
        """Keep the rows that start from an image or latents, and return the others."""
        others: list[RowWork] = []
        for work in works:
            request = self._request_of(work)
            (self._waiting if addresses_of_inputs(request) else others).append(work)
        return others

    def start_fetches(self) -> int:
        """Start the fetches that may start now, and return their number. Each row ends in
        `add_row` or abandoned."""
        started = 0
        while self._waiting and len(self._open) < self._max_open:
            work = self._waiting.popleft()
            self._open.add(work)
            self._expect_row(work)
            self._context.image_fetchers.submit(self._fetch_into, work)
            started += 1
        return started

    def release(self, work: RowWork) -> None:
        """Note that a row has ended, and its pixels are no longer needed."""
        self._open.discard(work)

    def stop(self) -> None:
        """Start no more fetches."""
        self._waiting.clear()

    def _fetch_into(self, work: RowWork) -> None:
        try:
            inputs = self._fetch(work)
        except ImagefleetError as error:
            work.abandon(error)
        except Exception as error:  # nothing reads the future of this thread
            log.exception("row %d: what it starts from cannot be read", work.row)
            field = input_field_of(self._request_of(work))
            work.abandon(InvalidInput(f"{field}: {type(error).__name__}: {error}"))
        else:
            if work.start_from(*inputs):
                self._add_row(work)

    def _fetch(self, work: RowWork) -> tuple[InitInput, ...]:
        """Fetch what a row starts from, and try again while a server does not answer."""
        request, retries = self._request_of(work), 0
        addresses = frozenset(addresses_of_inputs(request).items())
        key = (addresses, request.strength, request.denoising_start, work.shape)
        while True:
            if work.ended:
                raise LeaseLost("nothing waits for this row any more")
            if (latest := self._latest) is not None and latest[0] == key:
                return latest[1]
            try:
                inputs = self._context.retry_while_unavailable(
                    lambda: self._context.fetch_image(request, work.shape), f"row {work.row}"
                )
                self._latest = key, inputs
                return inputs
            except InputUnavailable as error:
                if retries == _MAX_RETRIES:
                    raise
                log.warning("row %d is tried again: %s", work.row, error)
                time.sleep(backoff_s(retries, min_s=_MIN_BACKOFF_S, max_s=_MAX_BACKOFF_S))
                retries += 1
