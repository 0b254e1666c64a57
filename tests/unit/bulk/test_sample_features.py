"""`datasets` reads the metadata of every sample of a WebDataset as they were given."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imagefleet.shared.bulk.file_layout import CARD, archive_key, metadata_key, stats_key
from imagefleet.shared.bulk.plan import Plan, ShardPlan, Source
from imagefleet.shared.bulk.stats import ShardFile, ShardStats
from imagefleet.shared.bulk.summary import write_summary
from imagefleet.shared.storage.folder import FolderStore
from imagefleet.worker.bulk.samples import Sample, Spool
from imagefleet.worker.bulk.shard_formats import put_shard

PLAIN = [{"seed": n, "extra": {}} for n in range(6)]
"""More samples than those from which `datasets` infers types."""
DATASETS = """
import json, sys, datasets
for streaming in (False, True):
    found = datasets.load_dataset(
        sys.argv[1], split="train", cache_dir=sys.argv[2], streaming=streaming
    )
    print(json.dumps([sample["json"] for sample in found.remove_columns("png")]))
"""


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    return buffer.getvalue()


def _make(folder: Path, shards: list[list[dict[str, Any]]]) -> FolderStore:
    """Make the files of a dataset with these metadata, and its card."""
    store, plans = FolderStore(folder), []
    for number, documents in enumerate(shards):
        name = f"{number:05d}"
        with Spool() as spool:
            for row, document in enumerate(documents):
                key = f"{number * 100 + row:09d}-00"
                made = {"prompt": "a", **document}
                spool.add(Sample(key=key, image=_png(), extension="png", document=made))
            stored = put_shard(spool, name, _plan([]).format, store)
        stats = ShardStats(
            shard=name,
            plan_sha256="a" * 64,
            model="fake",
            model_digest="sha256:1",
            samples=len(documents),
            files=tuple(ShardFile(key=f.key, sha256=f.sha256, size=f.size) for f in stored),
        )
        store.put(stats_key(name), stats.dump(), "application/json")
        count = len(documents)
        plans.append(ShardPlan(name=name, rows=count, samples=count, sha256="a" * 64))
    write_summary(store, _plan(plans))
    return store


def _plan(shards: list[ShardPlan]) -> Plan:
    rows = sum(shard.rows for shard in shards)
    return Plan(
        shard_size=100,
        source=Source(name="a"),
        rows=rows,
        samples=rows,
        shards=tuple(shards),
        created_at="now",
    )


def _read(folder: Path, cache: Path) -> list[list[dict[str, Any]]]:
    """Return the metadata as `datasets` reads them from files, and as a stream."""
    done = subprocess.run(
        [sys.executable, "-c", DATASETS, str(folder), str(cache)],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_late_and_mixed_columns_are_read_as_they_were_given(tmp_path: Path) -> None:
    early: dict[str, Any] = {
        "null": None,
        "number": 1,
        "list": [],
        "mixed": 1,
        "nested": {"a": [{"b": None}]},
    }
    late = {
        "null": "text",
        "number": 1.5,
        "list": ["a", None],
        "mixed": "two",
        "nested": {"a": [{"b": 1}], "c": [[]]},
        "new": True,
        "large": 2**63,
        'a "name": #\u2028\x85 \U0001f600': "x",
        "only null": None,
    }
    documents = [{"seed": n, "extra": early} for n in range(6)]
    shards = [documents, [{"seed": 6, "guidance_rescale": 0.5, "extra": late}]]
    _make(tmp_path / "data", shards)
    for found in _read(tmp_path / "data", tmp_path / "cache"):
        assert {tuple(sample) for sample in found} == {tuple(found[0])}  # each has every key
        assert [sample["seed"] for sample in found] == list(range(7))
        assert [sample["guidance_rescale"] for sample in found] == [None] * 6 + [0.5]
        first, last = found[0]["extra"], found[6]["extra"]
        assert last == {**late, "large": str(2**63)}
        expected = {**dict.fromkeys(late), **early, "mixed": "1"}
        assert first == {**expected, "nested": {"a": [{"b": None}], "c": None}}


def test_a_dataset_without_extra_columns_has_empty_ones(tmp_path: Path) -> None:
    _make(tmp_path / "data", [PLAIN])
    for found in _read(tmp_path / "data", tmp_path / "cache"):
        assert found == [{"prompt": "a", **document} for document in PLAIN]


def test_an_object_with_thousands_of_names_is_text(tmp_path: Path) -> None:
    counts = [{"extra": {"words": {f"{n} {word}": 1 for word in range(9)}}} for n in range(200)]
    card = _make(tmp_path / "data", [counts]).get(CARD).decode()
    assert '- name: "words"\n        dtype: "string"\n' in card


def test_metadata_that_cannot_be_read_cost_the_features_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = _make(tmp_path / "data", [PLAIN])
    assert "dataset_info" in store.get(CARD).decode()
    plan = _plan([ShardPlan(name="00000", rows=6, samples=6, sha256="a" * 64)])
    for damage in (b"{", b"[" * 100_000):
        store.put(metadata_key("00000"), damage, "text/plain")
        write_summary(store, plan)
        assert "dataset_info" not in store.get(CARD).decode()
        assert "the card gets no features" in caplog.text
    assert store.exists(archive_key("00000"))
