"""Which commit markers belong to a plan."""

import pytest

from imagefleet.shared.bulk.commit_markers import finished_shards, read_marker
from imagefleet.shared.bulk.file_layout import images_key, metadata_key, stats_key
from imagefleet.shared.bulk.plan import BulkFormat, Plan, ShardPlan, Source
from imagefleet.shared.bulk.stats import ShardFile, ShardStats
from imagefleet.shared.storage.memory import MemoryStore

SHARD = ShardPlan(name="00000", rows=1, samples=1, sha256="a" * 64)


def _plan(format: BulkFormat = BulkFormat.WEBDATASET, model_digest: str | None = None) -> Plan:
    return Plan(
        format=format,
        shard_size=1,
        model_digest=model_digest,
        source=Source(name="a.txt"),
        rows=1,
        samples=1,
        shards=(SHARD,),
        created_at="now",
    )


def _marker(format: BulkFormat = BulkFormat.WEBDATASET, sha256: str = "a" * 64) -> ShardStats:
    images = images_key(format, "00000") or "00000/000000000-00.png"
    return ShardStats(
        shard="00000",
        plan_sha256=sha256,
        model="fake",
        model_digest="sha256:1",
        samples=1,
        files=tuple(
            ShardFile(key=key, sha256="", size=0) for key in (images, metadata_key("00000"))
        ),
    )


def _is_finished(plan: Plan, marker: ShardStats) -> bool:
    store = MemoryStore()
    store.put(stats_key("00000"), marker.dump(), "application/json")
    found = read_marker(store, plan, SHARD)
    assert list(finished_shards(store, plan, plan.shards)) == ([(SHARD, found)] if found else [])
    return found is not None


@pytest.mark.parametrize("made", BulkFormat)
@pytest.mark.parametrize("planned", BulkFormat)
def test_a_marker_belongs_to_plans_of_its_format(planned: BulkFormat, made: BulkFormat) -> None:
    assert _is_finished(_plan(planned), _marker(made)) is (planned is made)


@pytest.mark.parametrize(("digest", "expected"), [(None, True), ("sha256:1", True), ("x", False)])
def test_a_marker_belongs_to_plans_of_its_model(digest: str | None, expected: bool) -> None:
    assert _is_finished(_plan(model_digest=digest), _marker()) is expected


def test_a_marker_belongs_to_its_rows() -> None:
    assert not _is_finished(_plan(), _marker(sha256="b" * 64))
