"""Runs whose formats no living worker can write are refused."""

from typing import Any

import pytest

from imagefleet.producer.bulk.dataset_options import parse_spec
from imagefleet.producer.bulk.row_images import RowImages
from imagefleet.producer.bulk.worker_formats import check_formats, living_workers, workers_without
from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus

SPEC = parse_spec(RowImages(read_files=False), format="parquet", image_format="webp")


def _worker(name: str, *formats: str, **changes: Any) -> WorkerStatus:
    fields: dict[str, Any] = {
        "worker": f"{name}:1:x",
        "state": WorkerState.READY,
        "model": "m",
        "shard_formats": ("webdataset", "files", *formats),
        "image_formats": ("png", "webp", "jpeg"),
    }
    return WorkerStatus.model_validate({**fields, **changes})


@pytest.mark.parametrize(
    "workers",
    [
        [],
        [_worker("a"), _worker("b", "parquet")],
        [_worker("a", shard_formats=None)],  # of an older release
        [_worker("a", state=WorkerState.LOST)],
        [_worker("a", "parquet", state=WorkerState.JOINING), _worker("b")],
    ],
)
def test_a_run_starts_if_a_worker_may_be_able_to_write_it(workers: list[WorkerStatus]) -> None:
    check_formats(SPEC, living_workers(None, {}, workers))


def test_a_run_that_no_worker_can_write_is_refused_with_the_hosts() -> None:
    workers = [_worker(name) for name in "abcde"]
    leaves = _worker("z", "parquet", state=WorkerState.DRAINING)
    with pytest.raises(InvalidRequest) as refused:
        check_formats(SPEC, living_workers(None, {}, [*workers, leaves]))
    assert (refused.value.field, refused.value.value) == ("format", "parquet")
    assert "on a, b, c, 2 more install imagefleet" in str(refused.value)
    pillow = _worker("a", "parquet", image_formats=("png", "jpeg"))
    with pytest.raises(InvalidRequest, match="image_format='webp': no living worker can write it"):
        check_formats(SPEC, [pillow])
    assert workers_without(BulkFormat.FILES, workers) == []
