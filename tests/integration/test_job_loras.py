"""A job with LoRA runs on a worker that holds them; another worker lets it wait for that one."""

import time

import pytest

from imagefleet import Client, InvalidRequest, State
from tests.support.jobs import finish
from tests.support.processes import StartWorker

_HELD = {"IMAGEFLEET_JOB_LORA": "style=/loras/style,detail=/loras/detail"}


def _wait_for_offer(producer: Client, *names: str) -> None:
    """Wait until a worker of the fleet is ready that holds these LoRA."""
    ends_at = time.monotonic() + 120
    while not (offers := producer.offers()) or set(offers["fake"].loras) != set(names):
        assert time.monotonic() < ends_at, offers
        time.sleep(0.1)


def test_a_worker_without_the_lora_leaves_the_job_to_one_that_holds_it(
    start: StartWorker, producer: Client
) -> None:
    start()
    _wait_for_offer(producer)
    with pytest.raises(
        InvalidRequest, match=r"loras='style': .* workers of the model fake hold; they hold"
    ):
        producer.submit("a", loras=[("style", 0.8)])
    start(**_HELD)
    _wait_for_offer(producer, "detail", "style")
    with_lora = producer.submit_many(["a", "b", "c"] * 3, loras=[("style", 0.8)])
    without = producer.submit_many(["a", "b", "c"] * 3)
    assert finish(producer, [*with_lora, *without]) == {State.SUCCEEDED}
    results = producer.statuses(job.id for job in with_lora)
    assert all(status.request.loras == (("style", 0.8),) for status in results)
    makers = {status.result.worker for status in results if status.result is not None}
    assert len(makers) == 1


def test_a_mixture_makes_another_image_and_its_id_is_that_of_its_mixture(
    start: StartWorker, producer: Client
) -> None:
    start(**_HELD)
    _wait_for_offer(producer, "detail", "style")
    jobs = [
        producer.submit("a", seed=1, loras=loras, id=f"mixture-{number}")
        for number, loras in enumerate(["", "style:0.8", "style:0.5", "style:0.5,detail"])
    ]
    assert finish(producer, jobs) == {State.SUCCEEDED}
    assert len({job.result().images[0].pixel_sha256 for job in jobs}) == 4
    digests = producer.offers()["fake"].loras
    used = [
        [(each.name, each.digest, each.scale) for each in job.result().job_loras] for job in jobs
    ]
    style, detail = digests["style"], digests["detail"]
    assert used[:2] == [[], [("style", style, 0.8)]]
    assert used[3] == [("detail", detail, 1.0), ("style", style, 0.5)]
    assert "job_loras" not in jobs[0].result().model_dump_json()  # release 0.1.0 reads it
    again = producer.submit("a", seed=1, loras=[("style", 0.8)], id="mixture-1")
    assert again.result().images == jobs[1].result().images
    with pytest.raises(InvalidRequest, match="is in use already"):
        producer.submit("a", seed=1, loras=[("style", 0.7)], id="mixture-1")
