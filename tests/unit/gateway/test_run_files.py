"""The files of a run are listed without a look at shards that are not finished."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from imagefleet.producer.gateway.batches.run_files import list_files
from imagefleet.shared.storage.folder import FolderStore
from imagefleet.testing import FakeFleet


class _NotedReads(FolderStore):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.read: list[str] = []

    def get(self, key: str, *args: Any) -> bytes:
        self.read.append(key)
        return super().get(key, *args)


def test_only_commit_markers_of_finished_shards_are_read(tmp_path: Path) -> None:
    with FakeFleet(auto=False) as fleet:
        run = fleet.client.bulk(["a", "b", "c"], tmp_path / "data", shard_size=1)
        store = _NotedReads(tmp_path / "data")
        noted = replace(run, store=store)
        assert list_files(noted, "", 10) == ([], False)
        assert store.read == []
        fleet.run_all()
        files, has_more = list_files(noted, "00000.tar", 3)
        assert [each.key for each in files] == ["00001.jsonl", "00001.tar", "00002.jsonl"]
        assert has_more
        assert len(store.read) == 3
