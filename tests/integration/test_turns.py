"""Who is served when, through a real worker: tenants, claims ahead, batches that linger."""

import redis

from imagefleet import Client
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.status import JobStatus
from tests.support.processes import StartWorker, until

FAKE_STEPS = 4
"""Of a fake model, where a job asks for none."""


def _start(status: JobStatus) -> float:
    assert status.started_at is not None
    return status.started_at


def test_a_flood_of_one_tenant_hardly_delays_another(start: StartWorker, producer: Client) -> None:
    flood = producer.submit_many([f"flood {n}" for n in range(1_000)], tenant="flood")
    start()
    until(lambda: flood[16].status().done)
    small = producer.submit_many([f"small {n}" for n in range(10)], tenant="small")
    for _ in producer.as_completed(small, timeout=60):
        pass
    found = producer.statuses(job.id for job in small)
    asked, served = found[0].submitted_at, max(_start(status) for status in found)
    begun = [each for each in producer.statuses(job.id for job in flood) if each.started_at]
    between = sum(asked < _start(status) <= served for status in begun)
    assert between <= 3 * 8, "one batch claimed ahead, then every second picture"


def test_no_more_than_one_batch_is_claimed_ahead_and_that_late(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    start(IMAGEFLEET_MODEL="fake:seconds=0.8,capacity=2")
    jobs = producer.submit_many([f"prompt {n}" for n in range(12)], num_inference_steps=12)

    def held() -> int:
        return sum(client.hlen(key) for key in client.scan_iter(f"{namespace}:claims:*"))

    until(lambda: jobs[0].status().step >= 2)
    early, step = held(), jobs[0].status().step
    assert (early, step <= 10) == (2, True)
    until(lambda: all(job.status().done for job in jobs[:2]))
    assert held() <= 4
    first, ahead = producer.statuses(job.id for job in (jobs[0], jobs[2]))
    assert _start(ahead) < (first.finished_at or 0.0)


def test_a_worker_fills_its_batches_with_jobs_of_like_step_counts(
    start: StartWorker, producer: Client
) -> None:
    mixed = [{"prompt": f"prompt {n}", "num_inference_steps": 2 + n % 2 * 10} for n in range(16)]
    jobs = producer.submit_many(mixed)
    start(IMAGEFLEET_MODEL="fake:seconds=0.02,capacity=4")
    for _ in producer.as_completed(jobs, timeout=60):
        pass
    served = sorted(producer.statuses(job.id for job in jobs), key=_start)
    steps = [status.request.num_inference_steps for status in served]
    assert steps == 2 * [*[2] * 4, *[12] * 4]


def test_a_job_that_leaves_its_steps_to_the_model_shares_a_batch_with_those_that_ask_for_as_many(
    start: StartWorker, producer: Client
) -> None:
    counts = 2 * [None, 2, FAKE_STEPS, 2]
    jobs = producer.submit_many(
        {"prompt": f"prompt {at}"} | ({"num_inference_steps": steps} if steps else {})
        for at, steps in enumerate(counts)
    )
    start(IMAGEFLEET_MODEL="fake:seconds=0.02,capacity=4")
    for _ in producer.as_completed(jobs, timeout=60):
        pass
    served = sorted(producer.statuses(job.id for job in jobs), key=_start)
    steps = [status.request.num_inference_steps for status in served]
    assert steps == [None, FAKE_STEPS] * 2 + [2] * 4


def test_pictures_left_over_by_a_batch_say_what_joins_them(
    start: StartWorker, producer: Client
) -> None:
    three, few, many = {"num_images_per_prompt": 3}, 2, 12
    asked = [*2 * [(many, three)], *2 * [(few, {})], *2 * [(many, {})]]
    jobs = producer.submit_many(
        {"prompt": f"prompt {at}", "num_inference_steps": steps} | images
        for at, (steps, images) in enumerate(asked)
    )
    start(IMAGEFLEET_MODEL="fake:seconds=0.02,capacity=4")
    for _ in producer.as_completed(jobs, timeout=60):
        pass
    served = sorted(producer.statuses(job.id for job in jobs), key=_start)
    steps = [status.request.num_inference_steps for status in served]
    assert sorted(steps[2:4]) == [few, many], "two places beside the many: the head, and the like"


def test_a_short_batch_waits_for_more_and_a_full_one_does_not(
    start: StartWorker, producer: Client
) -> None:
    start(IMAGEFLEET_MODEL="fake:capacity=4", IMAGEFLEET_BATCH_TIMEOUT_S="60")
    first = producer.submit_many(["a", "b", "c"])
    until(lambda: all(job.status().state is State.RUNNING for job in first))
    last = producer.submit("d")
    for _ in producer.as_completed([*first, last], timeout=120):
        pass
    assert {job.status().state for job in [*first, last]} == {State.SUCCEEDED}
