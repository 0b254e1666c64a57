"""The summary of a whole dataset."""

import io
import sys

import pytest
from PIL import Image

from imagefleet.shared.bulk.file_layout import (
    CARD,
    CONTACT_SHEET,
    RUN_STATS,
    archive_key,
    metadata_key,
    stats_key,
)
from imagefleet.shared.bulk.plan import Plan, RowParameters, ShardPlan, Source, canonical_json
from imagefleet.shared.bulk.stats import ShardFile, ShardStats
from imagefleet.shared.bulk.summary import write_missing_summary, write_summary
from imagefleet.shared.errors import StorageDenied, StorageUnavailable
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.bulk.samples import Sample
from imagefleet.worker.bulk.tar import write_tar

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


class _DeniesReading(MemoryStore):
    def get_range(self, key: str, start: int, length: int) -> bytes:
        raise StorageDenied(f"cannot get {key}: the server answers 416 InvalidRange")


def _finish_with_archive(store: MemoryStore) -> None:
    document = {"prompt": "a", "sha256": ""}
    image = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(image, "PNG")
    archive = io.BytesIO()
    sample = Sample(key="000000000-00", image=image.getvalue(), extension="png", document=document)
    write_tar([sample], archive)
    stored = store.put_file(archive_key("00000"), archive, "application/x-tar")
    store.put(metadata_key("00000"), canonical_json(document), "application/jsonl")
    file = ShardFile(key=stored.key, sha256=stored.sha256, size=stored.size)
    stats = ShardStats(
        shard="00000",
        plan_sha256="a" * 64,
        model="fake",
        model_digest=DIGEST,
        samples=1,
        files=(file,),
    )
    store.put(stats_key("00000"), stats.dump(), "application/json")


def test_an_archive_that_cannot_be_read_costs_the_sheet_and_not_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = _DeniesReading()
    _finish_with_archive(store)
    write_summary(store, _plan(None))
    assert store.exists(RUN_STATS)
    assert CONTACT_SHEET not in store.get(CARD).decode()
    [record] = caplog.records
    assert "gets no contact sheet: StorageDenied: cannot get 00000.tar" in record.getMessage()


def test_an_image_that_pillow_refuses_costs_the_sheet_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pillow's error about a decompression bomb is neither an OSError nor a ValueError."""
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 1)
    store = MemoryStore()
    _finish_with_archive(store)
    write_summary(store, _plan(None))
    assert store.exists(RUN_STATS)
    assert "gets no contact sheet: DecompressionBombError" in caplog.text


def test_a_process_without_pillow_says_why_there_is_no_sheet(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    _finish_with_archive(store)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "PIL", None)
        write_summary(store, _plan(None))
    assert not store.exists(CONTACT_SHEET)
    assert CONTACT_SHEET not in store.get(CARD).decode()
    [record] = caplog.records
    assert "no contact sheet: it needs PIL; install imagefleet" in record.getMessage()
    write_summary(store, _plan(None))
    assert store.exists(CONTACT_SHEET)


@pytest.fixture
def store() -> MemoryStore:
    found = MemoryStore()
    stats = ShardStats(
        shard="00000",
        plan_sha256="a" * 64,
        model="fake",
        model_digest=DIGEST,
        samples=4,
        files=(ShardFile(key=archive_key("00000"), sha256="", size=0),),
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
    parameters = RowParameters(latents="https://me:hunter2@example.org/a", denoising_start=0.8)
    write_summary(store, _plan(None).model_copy(update={"parameters": parameters}))
    assert "| `latents` | https://***@example.org/a |" in store.get(CARD).decode()


def test_the_card_says_what_rows_start_from(store: MemoryStore) -> None:
    write_summary(store, _plan(None))
    card = store.get(CARD).decode()
    assert "generated every image from a prompt.\n" in card
    assert "same model with the same\nparameters and seed generates the same image again" in card
    write_summary(store, _plan(None).model_copy(update={"input_images": 1, "input_latents": 3}))
    card = store.get(CARD).decode()
    assert "from a prompt, those with `init_image` in their metadata also from that image" in card
    assert ", those with `latents` in their metadata also from these latents.\n" in card
    assert "parameters, seed, init image and latents generates the same image again" in card
    assert "| Prompts with latents to go on with | 3 |" in card


def test_the_card_names_the_licence_of_the_model_that_made_the_images(store: MemoryStore) -> None:
    write_summary(store, _plan(None), {DIGEST: "apache-2.0", "sha256:other": "mit"})
    card = store.get(CARD).decode()
    assert "| Licence of the model | `apache-2.0` |" in card
    header = card.split("---")[1]
    assert "license" not in header, "that of the dataset is for its owner to choose"
    for unknown in ({}, {DIGEST: None}, {"sha256:other": "mit"}):
        write_summary(store, _plan(None), unknown)
        assert "icence" not in store.get(CARD).decode()


def test_the_summary_of_other_work_is_replaced(store: MemoryStore) -> None:
    write_summary(store, _plan(None).model_copy(update={"seed": 1}))
    before = store.get(RUN_STATS)
    write_missing_summary(store, _plan(None))
    assert store.get(RUN_STATS) != before
    store.put(RUN_STATS, b"not one", "application/json")
    write_missing_summary(store, _plan(None))
    assert b"not one" not in store.get(RUN_STATS)


class _IsDown(MemoryStore):
    def get_range(self, key: str, start: int, length: int) -> bytes:
        raise StorageUnavailable("no answer")


def test_an_unavailable_store_is_no_damaged_archive() -> None:
    store = _IsDown()
    _finish_with_archive(store)
    with pytest.raises(StorageUnavailable):
        write_summary(store, _plan(DIGEST))
