"""Finished datasets, read with webdataset, Hugging Face datasets and pandas."""

import base64
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imagefleet import Client
from imagefleet.producer.bulk.run import BulkRun
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.processes import worker_processes
from tests.support.settings import worker_settings

ROWS: list[Any] = [
    *({"prompt": f"prompt {n}", "seed": n, "author": "me"} for n in range(7)),
    "a plain one",
]
FORMATS = {"webdataset": "png", "parquet": "webp", "files": "jpeg"}


@pytest.fixture(scope="module")
def runs(
    redis_server: LocalRedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, BulkRun]]:
    """Make one dataset per format: 16 images of 8 rows in shards of 6."""
    folder = tmp_path_factory.mktemp("made")
    fleet = worker_settings(
        redis_server.url, folder, IMAGEFLEET_NAMESPACE="reading", IMAGEFLEET_MODEL="fake"
    )
    with worker_processes(folder, fleet) as start:
        worker = start()
        with closing(Client(redis_server.url, namespace="reading")) as client:
            started = {
                kind: client.bulk(
                    ROWS,
                    folder / kind,
                    format=kind,
                    image_format=image_format,
                    shard_size=6,
                    num_images_per_prompt=2,
                )
                for kind, image_format in FORMATS.items()
            }
            for run in started.values():
                assert run.wait(300).state is State.SUCCEEDED, worker.output()[-2000:]
            yield started


def _folder(run: BulkRun) -> Path:
    return Path(run.destination.removeprefix("file://"))


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_passes_verify_with_regenerated_images(
    runs: dict[str, BulkRun], kind: str
) -> None:
    report = runs[kind].verify(sample=1)
    assert report.clean, report.problems
    assert (report.present, report.shards, report.regenerated) == (16, 3, 2)
    assert report.max_difference == 0


def _read(script: str, *arguments: object) -> Any:
    """Run a script and return the JSON that it prints. webdataset leaves files open, which would
    fail tests in this process."""
    completed = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout.splitlines()[-1])


WEBDATASET = """
import json, sys, webdataset
samples = list(webdataset.WebDataset(sys.argv[1:], shardshuffle=False).decode("pil"))
print(json.dumps([[s["__key__"], s["png"].size, s["txt"], s["json"]] for s in samples]))
"""


def test_webdataset_reads_the_shards(runs: dict[str, BulkRun]) -> None:
    samples = _read(WEBDATASET, *sorted(_folder(runs["webdataset"]).glob("[0-9]*.tar")))
    assert [key for key, *_ in samples] == [
        f"{row:09d}-{image:02d}" for row in range(8) for image in range(2)
    ]
    _, size, text, document = samples[2]
    assert (size, text, document["seed"]) == ([64, 64], "prompt 1", 1)
    assert document["extra"] == {"author": "me"}


DATASETS = """
import json, sys, datasets
found = datasets.load_dataset(sys.argv[1], split="train", cache_dir=sys.argv[2])
image, text = sys.argv[3:]
print(json.dumps([len(found), found[2][image].size, sorted(set(found[text]))]))
"""


@pytest.mark.parametrize(
    ("kind", "image", "text"),
    [
        ("webdataset", "png", "txt"),
        ("parquet", "image", "prompt"),
        ("files", "image", "prompt"),
    ],
)
def test_hugging_face_datasets_reads_the_folder_by_its_card(
    runs: dict[str, BulkRun], kind: str, image: str, text: str, tmp_path: Path
) -> None:
    found = _read(DATASETS, _folder(runs[kind]), tmp_path, image, text)
    assert found == [16, [64, 64], ["a plain one", *(f"prompt {n}" for n in range(7))]]
    assert ("dataset_info:" in (_folder(runs[kind]) / "README.md").read_text()) is (
        kind == "webdataset"
    )


def test_the_columns_of_a_folder_are_those_of_parquet(runs: dict[str, BulkRun]) -> None:
    lines = (_folder(runs["files"]) / "00000" / "metadata.jsonl").read_text().splitlines()
    third = json.loads(lines[2])
    with Image.open(_folder(runs["files"]) / "00000" / third["file_name"]) as image:
        assert image.size == (third["width"], third["height"])
    assert (third["prompt"], third["seed"], len(third["pixel_sha256"])) == ("prompt 1", 1, 64)
    assert json.loads(third["metadata"])["extra"] == {"author": "me"}


PANDAS = """
import base64, json, pandas, sys
table = pandas.concat([pandas.read_parquet(path) for path in sys.argv[1:]])
third = table.iloc[2].drop("image").to_dict()
image = base64.b64encode(table.iloc[2]["image"]["bytes"]).decode()
print(json.dumps([len(table), third, image], default=int))
"""


def test_pandas_reads_the_columns_of_diffusiondb(runs: dict[str, BulkRun]) -> None:
    files = sorted(_folder(runs["parquet"]).glob("[0-9]*.parquet"))
    rows, third, image = _read(PANDAS, *files)
    assert rows == 16
    known = ["image_name", "prompt", "part_id", "seed", "step", "cfg", "sampler", "width", "height"]
    values = ["000000001-00.webp", "prompt 1", 0, 1, 4, 7.5, "ddim", 64, 64]
    assert [third[name] for name in known] == values
    with Image.open(io.BytesIO(base64.b64decode(image))) as image:
        assert (image.format, image.size) == ("WEBP", (64, 64))
