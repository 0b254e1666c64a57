"""A host claims shards again as soon as the store that failed can be written."""

import threading
from pathlib import Path

import pytest

from imagefleet.shared.errors import LeaseLost
from imagefleet.shared.storage import StoredObject
from imagefleet.shared.storage.folder import FolderStore
from imagefleet.worker.bulk.store_probe import StoreProbe
from imagefleet.worker.devices.row_backlog import RowBacklog
from tests.support.processes import until


@pytest.fixture
def backlog() -> RowBacklog:
    """Return the backlog of a host that makes a pause of 256 s, after nine failures in a row."""
    _Counted.puts = 0
    backlog = RowBacklog(4)
    assert [backlog.back_off() for _ in range(9)][-1] == 256
    assert not backlog.wants_shard()
    return backlog


def _probes() -> int:
    return sum(thread.name == "store-probe" for thread in threading.enumerate())


def test_the_pause_ends_once_a_store_that_failed_can_be_written(
    backlog: RowBacklog, tmp_path: Path
) -> None:
    blocked = tmp_path / "parts"
    blocked.write_text("a file where a folder is needed")
    probe = StoreProbe(backlog, every_s=0.01)
    for _ in range(3):  # shards of one store have one probe
        probe.watch(_Counted(tmp_path), "parts/00000", 10_000)
    assert _probes() == 1
    until(lambda: _Counted.puts)
    assert not backlog.wants_shard()
    blocked.unlink()
    until(backlog.wants_shard)
    until(lambda: not _probes())
    assert list(tmp_path.iterdir()) == []  # the probe is deleted


def test_the_pause_goes_on_if_a_small_object_can_be_stored_all_the_time(
    backlog: RowBacklog, tmp_path: Path
) -> None:
    StoreProbe(backlog, every_s=0.001).watch(_Counted(tmp_path), "parts/00000", 10_000)
    until(lambda: _Counted.puts > 5)
    assert not backlog.wants_shard()
    backlog.end_pause()
    until(lambda: not _probes())


def test_a_probe_ends_with_its_worker(backlog: RowBacklog, tmp_path: Path) -> None:
    (tmp_path / "parts").write_text("a file where a folder is needed")
    StoreProbe(backlog, every_s=0.01).watch(FolderStore(tmp_path), "parts/00000", 0)
    backlog.close(LeaseLost("this worker is draining"))
    until(lambda: not _probes())


class _Counted(FolderStore):
    """A folder that counts how often something was stored, or could not be."""

    puts = 0

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        try:
            return super().put(key, data, content_type)
        finally:
            _Counted.puts += 1
