"""Datasets whose rows use LoRA: real workers generate them, and jobs give the same images."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import redis
from PIL import Image

from imagefleet import Client
from imagefleet.producer.bulk.run import BulkRun
from imagefleet.shared.bulk.shard_message import shards_to_send
from imagefleet.shared.jobs.model import State
from tests.support.datasets import read_tar
from tests.support.processes import StartWorker, until
from tools.train_shapes.captions import read_caption
from tools.train_shapes.outlines import LORA_FILE, fill

_HELD = {"IMAGEFLEET_JOB_LORA": "style=/loras/style,detail=/loras/detail"}


def _samples(run: BulkRun) -> dict[int, tuple[dict[str, Any], Any]]:
    """Return document and pixels of each row's sample in the tars."""
    found: dict[int, tuple[dict[str, Any], Any]] = {}
    folder = Path(run.destination.removeprefix("file://"))
    for path in sorted(folder.glob("[0-9]*.tar")):
        read = read_tar(path.read_bytes())
        for name in read:
            if name.endswith(".json"):
                document = json.loads(read[name])
                image = Image.open(io.BytesIO(read[name.replace(".json", ".png")]))
                found[document["row"]] = (document, np.asarray(image.convert("RGB")))
    return found


def test_rows_use_the_loras_that_they_name(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    start(**_HELD)
    offer = until(lambda: producer.offers())["fake"]
    table = tmp_path / "rows.csv"
    table.write_text('prompt,seed,loras\na,1,\na,1,style:0.8\na,1,"detail,style:0.8"\na,1,styl\n')
    run = producer.bulk(table, tmp_path / "data")
    assert [row["row"] for row in run.rejected()] == [3]
    assert run.wait(300).images == 3
    documents = {row: document for row, (document, _) in _samples(run).items()}
    assert "job_loras" not in documents[0]
    style = {"name": "style", "digest": offer.loras["style"], "scale": 0.8}
    detail = {"name": "detail", "digest": offer.loras["detail"], "scale": 1.0}
    assert documents[1]["job_loras"] == [style]
    assert documents[2]["job_loras"] == [detail, style]
    job = producer.submit("a", seed=1, loras="style:0.8").result(timeout=900)
    assert job.images[0].pixel_sha256 == documents[1]["pixel_sha256"]
    assert len({document["pixel_sha256"] for document in documents.values()}) == 3
    assert producer.bulk(table, tmp_path / "data") == run
    report = run.verify(sample=3)
    assert (report.clean, report.regenerated, report.max_difference) == (True, 3, 0)


def _lora_lists(client: redis.Redis, namespace: str) -> list[str]:
    return list(client.scan_iter(f"{namespace}.bulk*&style*"))


def test_a_worker_without_the_loras_leaves_the_shard_to_one_that_holds_them(
    start: StartWorker,
    client: redis.Redis,
    namespace: str,
    producer: Client,
    tmp_path: Path,
) -> None:
    run = producer.bulk([{"prompt": "a", "loras": "style:0.8"}], tmp_path / "data")
    start()
    until(lambda: _lora_lists(client, namespace))
    with producer.connection.runs(run.id) as runs:
        [shard] = runs.shards(run.id)
        assert (shard.state, shard.tries) == (State.QUEUED, 1)
        again = shards_to_send(run.plan, run.plan.shards)
        assert runs.resend_lost(runs.get(run.id).as_new_run, again) == 0
    start(**_HELD)
    assert run.wait(300).images == 1
    assert not _lora_lists(client, namespace)
    assert _samples(run)[0][0]["job_loras"][0]["name"] == "style"


def test_the_shapes_of_rows_with_the_outline_lora_are_hollow(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    start(IMAGEFLEET_MODEL="shapes", IMAGEFLEET_JOB_LORA=f"outline={LORA_FILE}")
    until(lambda: producer.offers())
    prompt = "a large red circle on the left on a blue background"
    rows = [{"prompt": prompt, "seed": 1, "loras": loras} for loras in (None, "outline")]
    run = producer.bulk(rows, tmp_path / "data")
    assert run.wait(300).images == 2
    scene = read_caption(prompt)
    filled = {row: fill(pixels, scene) for row, (_, pixels) in _samples(run).items()}
    assert filled[0] > 0.8, filled
    assert filled[1] < 0.5, filled
