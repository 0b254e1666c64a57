"""Jobs and rows with weights in their prompts: workers that read none leave them to others."""

from pathlib import Path

import pytest

from imagefleet import Client, InvalidRequest
from tests.support.processes import StartWorker, until

_READS = {"IMAGEFLEET_PROMPT_CHUNKS": "2"}


def test_a_worker_that_reads_no_weights_leaves_the_job_to_one_that_does(
    start: StartWorker, producer: Client
) -> None:
    weighed = producer.submit("a (red:1.3) star", seed=1, prompt_weighting=True)
    plain = producer.submit("a (red:1.3) star", seed=1)
    start()
    made_plain = plain.result(timeout=900)
    with pytest.raises(InvalidRequest, match=r"^prompt_weighting=True: needs workers with"):
        producer.submit("a star", prompt_weighting=True)
    start(**_READS)
    made = weighed.result(timeout=900)
    assert made.worker != made_plain.worker
    assert made.images[0].pixel_sha256 != made_plain.images[0].pixel_sha256
    assert weighed.status().request.prompt_weighting


def test_a_worker_that_reads_no_weights_leaves_the_shard_to_one_that_does(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    run = producer.bulk(["a (red:1.3) star", "b"], tmp_path / "data", prompt_weighting=True)
    start().await_log("the plan has prompts with weights; this worker has")
    start(**_READS)
    until(lambda: producer.offers()["fake"].prompt_chunks == 2)
    assert run.wait(300).images == 2
    report = run.verify(sample=2)
    assert (report.clean, report.regenerated, report.max_difference) == (True, 2, 0)
