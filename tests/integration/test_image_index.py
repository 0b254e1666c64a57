"""One image of several: a worker makes it with the pixels of the whole job, also in datasets."""

import json
from pathlib import Path
from typing import Any

from imagefleet import Client
from tests.support.processes import StartWorker

MANY: dict[str, Any] = {"seed": 7, "num_images_per_prompt": 4}


def test_a_worker_makes_one_image_of_a_job_and_of_the_rows_of_a_dataset(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    start().await_log("ready after")
    whole = producer.submit("a star", **MANY)
    alone = producer.submit("a star", image_index=2, **MANY)
    images = whole.result(300).images
    [image] = alone.result(300).images
    assert image.key == f"jobs/{alone.id}/2.png"
    assert image.pixel_sha256 == images[2].pixel_sha256

    row = {"prompt": "a star", **MANY}
    run = producer.bulk([row, {**row, "image_index": 2}], tmp_path / "data")
    assert run.wait(300).images == 5
    lines = (tmp_path / "data" / "00000.jsonl").read_text().splitlines()
    digests = {each["key"]: each["pixel_sha256"] for each in map(json.loads, lines)}
    assert digests.keys() == {*(f"000000000-0{index}" for index in range(4)), "000000001-02"}
    assert digests["000000001-02"] == digests["000000000-02"] == image.pixel_sha256
    report = run.verify(sample=2)
    assert report.clean
    assert (report.regenerated_rows, report.regenerated) == (2, 5)
