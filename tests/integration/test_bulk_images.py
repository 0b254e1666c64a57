"""Datasets that start from images: real workers fetch them, and a bad one costs its row only."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from PIL import Image

from imagefleet import Client
from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.bulk.verify import verify
from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.request import JobRequest
from tests.support.files import files_below
from tests.support.image_server import ImageServer, SlowImage
from tests.support.processes import StartWorker, until

ALLOW = {"IMAGEFLEET_CALLBACK_ALLOW": "127.0.0.1"}


def _png(colour: str | tuple[int, int, int], size: tuple[int, int] = (64, 64)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def _folder(run: BulkRun) -> Path:
    return Path(run.destination.removeprefix("file://"))


def _samples(run: BulkRun) -> dict[int, tuple[dict[str, Any], Image.Image]]:
    """Return document and image of each row's first sample in the tars."""
    found: dict[int, tuple[dict[str, Any], Image.Image]] = {}
    for path in sorted(_folder(run).glob("[0-9]*.tar")):
        with tarfile.open(path) as archive:
            files = {name: archive.extractfile(name) for name in archive.getnames()}
            for name, file in files.items():
                if name.endswith("-00.json") and file is not None:
                    document = json.loads(file.read())
                    image = files[name.replace(".json", ".png")]
                    assert image is not None
                    found[document["row"]] = (document, Image.open(io.BytesIO(image.read())))
    return found


@pytest.fixture
def images() -> Iterator[ImageServer]:
    with ImageServer({"/red.png": _png("red"), "/broken.png": b"no image"}) as server:
        yield server


def _write_table(folder: Path, url: str) -> Path:
    """Write a table of seven rows with images, masks and faults."""
    half = Image.new("L", (64, 64), 0)
    half.paste(255, (0, 0, 32, 64))
    half.save(folder / "mask.png")
    (folder / "blue.png").write_bytes(_png("blue", (96, 80)))
    table = folder / "rows.csv"
    table.write_text(
        "prompt,image,mask_image,strength,seed,author\n"
        "from a file,./blue.png,,0.5,1,me\n"
        f"from an address,{url}/red.png,,,1,me\n"
        "inpainted,./blue.png,./mask.png,1.0,1,me\n"
        "from text,,,,1,me\n"
        f"no image there,{url}/nothing.png,,,1,me\n"
        f"a broken image,{url}/broken.png,,,1,me\n"
        "nowhere,./nowhere.png,,,1,me\n"
    )
    return table


def _check_digests(documents: dict[int, dict[str, Any]], folder: Path) -> None:
    """Check that the documents of `_write_table` name the files that their images started from."""
    blue, mask = ((folder / name).read_bytes() for name in ("blue.png", "mask.png"))
    for row, files in enumerate([[blue], [_png("red")], [blue, mask], []]):
        found = [documents[row].get(name) for name in ("image_digest", "mask_image_digest")]
        expected = [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in files]
        assert [each for each in found if each is not None] == expected


def test_rows_of_a_table_start_from_files_and_addresses(
    start: StartWorker,
    producer: Client,
    images: ImageServer,
    tmp_path: Path,
    settings: dict[str, str],
) -> None:
    start(**ALLOW).await_log("ready after")
    table = _write_table(tmp_path, images.url)
    run = producer.bulk(table, tmp_path / "data", upload_files=True)
    assert run.plan.input_images == 5
    assert [row["row"] for row in run.rejected()] == [6]
    assert run.wait(300).failures_by_reason == {"invalid_input": 2}
    failures = {failure.row: failure.message for failure in run.failures()}
    assert failures[4] == "image: its server answers 404"
    assert failures[5].startswith("image: cannot be read as PNG, JPEG, WEBP")

    samples = _samples(run)
    assert sorted(samples) == [0, 1, 2, 3]
    documents = {row: document for row, (document, _) in samples.items()}
    assert documents[0]["strength"] == 0.5
    assert documents[0]["init_image"].startswith("inputs/")
    assert documents[1]["init_image"] == f"{images.url}/red.png"
    assert documents[1]["strength"] == 0.8
    assert documents[2]["mask_image"].startswith("inputs/")
    assert "original" in documents[0]
    _check_digests(documents, tmp_path)
    assert not {"original", "init_image", "strength"} & documents[3].keys()
    kept = np.asarray(samples[2][1].convert("RGB"))[:, 32:]
    assert (kept == (0, 0, 255)).all()  # where the mask is black
    inputs = files_below(Path(settings["IMAGEFLEET_STORAGE_URL"].removeprefix("file://")))
    assert len([path for path in inputs if "inputs" in path.parts]) == 2

    again = producer.bulk(table, tmp_path / "data", upload_files=True)
    assert again == run
    report = run.verify(sample=6)
    assert (report.clean, report.max_difference) == (True, 0)
    assert report.regenerated > 0
    assert 0.8 in _strengths_compared(run)


def _strengths_compared(run: BulkRun) -> set[float | None]:
    """Return with which `strength` the images of a clean run are generated again."""
    strengths = set[float | None]()

    def regenerate(request: JobRequest) -> list[bytes]:
        strengths.add(request.strength)
        return run.regenerate(request)

    assert verify(run.plan, run.store, regenerate, sample=12).clean
    return strengths


def test_more_rows_than_fit_in_memory_come_one_window_after_another_and_survive_kills(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    colours = [(n, 255 - n, n) for n in range(120)]
    rows = [{"prompt": f"{n}", "image": _png(colour)} for n, colour in enumerate(colours)]
    slow = {"IMAGEFLEET_MODEL": "fake:seconds=0.05,capacity=4", "IMAGEFLEET_BULK_CHECKPOINT_S": "1"}
    first = start(**slow)
    until(lambda: producer.offers())
    run = producer.bulk(rows, tmp_path / "data", shard_size=60)
    until(lambda: run.status().images > 8)
    first.kill()
    start(IMAGEFLEET_MODEL="fake:capacity=4")
    assert run.wait(300).images == 120
    documents = [document for document, _ in _samples(run).values()]
    assert len({document["original"] for document in documents}) == 120
    assert run.verify().clean
    until(lambda: not files_below(_folder(run) / "parts"))


def test_slow_images_do_not_hold_up_jobs_and_a_cancelled_run_leaves_no_claim(
    start: StartWorker, producer: Client, tmp_path: Path, client: redis.Redis, namespace: str
) -> None:
    slow = SlowImage(_png("red"))
    with ImageServer({"/slow.png": slow}) as server:
        start(**ALLOW)
        until(lambda: producer.offers())
        rows = [{"prompt": f"{n}", "image": f"{server.url}/slow.png"} for n in range(50)]
        run = producer.bulk(rows, tmp_path / "data")
        until(lambda: slow.begun > 0)
        assert producer.submit("a job").result(timeout=900).images
        assert not run.status().images
        run.cancel()
        until(lambda: not client.keys(f"{namespace}:claims:*"))
        slow.released.set()
    assert run.status().state is State.CANCELLED


def test_a_store_that_lacks_an_uploaded_image_fails_the_row_and_retry_makes_it(
    start: StartWorker, producer: Client, tmp_path: Path, settings: dict[str, str]
) -> None:
    start()
    until(lambda: producer.offers())
    run = producer.bulk(
        [{"prompt": "a", "image": _png("red")}, {"prompt": "b"}],
        tmp_path / "data",
        format=BulkFormat.FILES,
    )
    run.wait(300)
    store = Path(settings["IMAGEFLEET_STORAGE_URL"].removeprefix("file://"))
    [image] = (store / "inputs").iterdir()
    image.unlink()
    (tmp_path / "data" / "00000.stats.json").unlink()
    run = producer.bulk(
        [{"prompt": "a", "image": _png("red")}, {"prompt": "b"}],
        tmp_path / "data",
        format=BulkFormat.FILES,
    )
    assert image.exists()  # the same command uploads it again
    assert run.wait(300).images == 2
