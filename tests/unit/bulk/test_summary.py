"""The summary of a whole dataset."""

import pytest

from imagefleet.shared.bulk.file_layout import CARD, RUN_STATS, stats_key
from imagefleet.shared.bulk.plan import Plan, RowParameters, ShardPlan, Source
from imagefleet.shared.bulk.stats import ShardStats
from imagefleet.shared.bulk.summary import write_missing_summary, write_summary
from imagefleet.shared.storage.memory import MemoryStore

DIGEST = "sha256:" + "1" * 64


def _plan(model_digest: str | None, source: str = "a.txt") -> Plan:
    return Plan(
        shard_size=4,
        model_digest=model_digest,
        source=Source(name=source),
        rows=4,
        samples=4,
        shards=(ShardPlan(name="00000", rows=4, samples=4, sha256="a" * 64),),
        created_at="now",
    )


@pytest.fixture
def store() -> MemoryStore:
    found = MemoryStore()
    stats = ShardStats(
        shard="00000",
        plan_sha256="a" * 64,
        model="fake",
        model_digest=DIGEST,
        samples=4,
        files=(),
    )
    found.put(stats_key("00000"), stats.dump(), "application/json")
    return found


def test_equal_work_gives_an_equal_summary(store: MemoryStore) -> None:
    """One plan was made before a worker announced its digest, from an input of another name."""
    write_summary(store, _plan(None))
    first = store.get(RUN_STATS), store.get(CARD)
    store.delete(CARD)
    write_missing_summary(store, _plan(DIGEST, "b.txt"))  # finds the summary
    with pytest.raises(KeyError):
        store.get(CARD)
    write_summary(store, _plan(DIGEST, "b.txt"))
    assert (store.get(RUN_STATS), store.get(CARD)) == first


def test_the_card_shows_the_image_of_all_rows_without_its_credentials(store: MemoryStore) -> None:
    image = "https://me:hunter2@example.org/@you/a.png?v=1&X-Amz-Signature=hunter2"
    parameters = RowParameters(image=image, negative_prompt="a://me@b?key=c", strength=0.5)
    write_summary(store, _plan(None).model_copy(update={"parameters": parameters}))
    card = store.get(CARD).decode()
    assert "| `image` | https://***@example.org/@you/a.png?v=1&X-Amz-Signature=*** |" in card
    assert "| `negative_prompt` | a://me@b?key=c |" in card


def test_the_summary_of_other_work_is_replaced(store: MemoryStore) -> None:
    write_summary(store, _plan(None).model_copy(update={"seed": 1}))
    before = store.get(RUN_STATS)
    write_missing_summary(store, _plan(None))
    assert store.get(RUN_STATS) != before
    store.put(RUN_STATS, b"not one", "application/json")
    write_missing_summary(store, _plan(None))
    assert b"not one" not in store.get(RUN_STATS)
