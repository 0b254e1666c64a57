"""Count the rows of a run that are done, and say why the first of the others have no images.

The calls block.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from imagefleet.producer.bulk.rejected import describe_rejected
from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.gateway.batches.run_order import (
    MAX_SHOWN_ERRORS,
    LineError,
    OrderRecord,
)
from imagefleet.shared.bulk.commit_markers import finished_shards
from imagefleet.shared.bulk.stats import RowFailure


def count_rows(record: OrderRecord, run: BulkRun) -> dict[str, Any]:
    """Return how many rows of a run are done, how many failed, and why the first of them did,
    behind the rejected rows: fields of its record."""
    done = made = 0
    errors = list(rejected_errors(run))
    for shard, stats in finished_shards(run.store, run.plan, run.plan.shards):
        done += shard.rows - len(stats.failures)
        made += stats.samples
        errors += map(_failed_error, stats.failures[: MAX_SHOWN_ERRORS - len(errors)])
    return {"done": done, "failed": record.rows - done, "made": made, "errors": tuple(errors)}


def rejected_errors(run: BulkRun) -> tuple[LineError, ...]:
    """Return why the first rows that could not be planned were rejected."""
    return tuple(map(_rejected_error, islice(run.rejected(), MAX_SHOWN_ERRORS)))


def _rejected_error(rejected: Mapping[str, object]) -> LineError:
    """Return why a row was rejected. Rows count from 0, as in datasets."""
    message, field = describe_rejected(rejected), str(rejected["field"])
    return LineError(code="invalid_request", message=message, param=field)


def _failed_error(failure: RowFailure) -> LineError:
    """Return why a planned row has no images."""
    return LineError(code=failure.code, message=f"row {failure.row}: {failure.message}")
