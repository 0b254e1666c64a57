"""The card of a finished dataset shows a contact sheet of some of its images."""

import io
from pathlib import Path

import pytest
from PIL import Image

from imagefleet import Client
from imagefleet.shared.bulk.file_layout import CARD, CONTACT_SHEET, RUN_STATS
from imagefleet.shared.bulk.first_samples import first_samples
from imagefleet.shared.bulk.stats import ShardStats
from imagefleet.shared.bulk.summary import write_summary
from imagefleet.shared.storage import ObjectStore
from tests.support.processes import StartWorker, until
from tests.support.s3 import signed_s3


class _CountingStore:
    """Counts the bytes that are read from another store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.read = 0

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.read += length
        return self._store.get_range(key, start, length)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


@pytest.mark.parametrize("format", ["webdataset", "parquet", "files"])
def test_the_card_shows_the_first_images_of_some_shards(
    start: StartWorker, producer: Client, tmp_path: Path, format: str
) -> None:
    start()
    until(producer.offers)
    prompts = [f"prompt {n}" for n in range(60)]
    run = producer.bulk(prompts, tmp_path / "data", shard_size=10, format=format)
    run.wait(300)
    until(lambda: run.store.exists(RUN_STATS))  # written last
    assert f"]({CONTACT_SHEET})" in run.store.get(CARD).decode()
    sheet = run.store.get(CONTACT_SHEET)
    with Image.open(io.BytesIO(sheet)) as image:
        assert image.size == (848, 1_116)  # 4 x 4 images with captions
        first = image.getpixel((20, 20))
    stats = ShardStats.model_validate_json(run.store.get("00003.stats.json"))
    samples = list(first_samples(run.store, run.plan, stats, 3))
    assert [prompt for _, prompt in samples] == ["prompt 30", "prompt 31", "prompt 32"]
    with Image.open(io.BytesIO(samples[0][0])) as image:
        assert image.size == (64, 64)
        assert image.getpixel((1, 1)) != first
    write_summary(run.store, run.plan)
    assert run.store.get(CONTACT_SHEET) == sheet
    assert run.verify().clean


def test_a_sheet_reads_ranges_of_a_large_archive_in_s3(
    producer: Client, start: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with signed_s3() as s3:
        for name, value in s3.credentials.environment().items():
            monkeypatch.setenv(name, value)
        start(IMAGEFLEET_BULK_ALLOW=s3.endpoint_url, IMAGEFLEET_SHAPES="512x512")
        until(producer.offers)
        run = producer.bulk(["a"], s3.url("data"), num_images_per_prompt=64)
        run.wait(300)
        stats = ShardStats.model_validate_json(run.store.get("00000.stats.json"))
        counting = _CountingStore(run.store)
        assert len(list(first_samples(counting, run.plan, stats, 4))) == 4  # type: ignore[arg-type]
        assert counting.read <= 1 << 20


def test_a_damaged_shard_costs_the_sheet_and_not_the_summary(
    start: StartWorker, producer: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start()
    until(producer.offers)
    run = producer.bulk(["a"], tmp_path / "data")
    run.wait(300)
    until(lambda: run.store.exists(RUN_STATS))
    (tmp_path / "data" / "00000.tar").write_bytes(b"no archive" * 100)
    write_summary(run.store, run.plan)
    assert CONTACT_SHEET not in run.store.get(CARD).decode()
    assert "the dataset gets no contact sheet" in caplog.text
