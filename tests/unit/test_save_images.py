"""Commands save the images of a result, or say why they cannot."""

from pathlib import Path

import pytest

from imagefleet.producer.commands.waiting import save_images
from imagefleet.shared.errors import BrokerUnavailable, StorageDenied, StorageUnavailable
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.storage.memory import MemoryStore
from tests.support.records import result_of_one_image


def _status() -> JobStatus:
    result = result_of_one_image()
    request = JobRequest(prompt="a")
    return JobStatus(id="j", state=State.SUCCEEDED, request=request, submitted_at=0, result=result)


@pytest.mark.parametrize("error", [BrokerUnavailable("away"), StorageUnavailable("away")])
def test_that_redis_or_the_store_is_away_is_not_told_as_a_missing_right(
    error: Exception, tmp_path: Path
) -> None:
    def open_store(root: str) -> ObjectStore:
        raise error

    status = _status()
    assert status.result is not None
    status.result.bind(open_store)
    with pytest.raises(type(error)):
        save_images(status, tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    store = MemoryStore()
    store.put("jobs/j/0.png", b"png", "image/png")
    status = _status()
    assert status.result is not None
    status.result.bind(lambda _: store)
    (tmp_path / "file").touch()
    with pytest.raises(StorageDenied, match=r"cannot save in .*file"):
        save_images(status, tmp_path / "file")
