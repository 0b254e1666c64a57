"""The order of jobs in a real worker: turns of tenants, prefetch, step affinity, batch timeout."""

import redis

from imagefleet import Client
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.status import JobStatus
from tests.support.processes import StartWorker, until

FAKE_STEPS = 4
"""Default steps of the fake model."""


def _started_at(status: JobStatus) -> float:
    assert status.started_at is not None
    return status.started_at


def test_a_flood_of_one_tenant_hardly_delays_another(start: StartWorker, producer: Client) -> None:
    flood = producer.submit_many([f"flood {n}" for n in range(1_000)], tenant="flood")
    start()
    until(lambda: flood[16].status().done)
    small = producer.submit_many([f"small {n}" for n in range(10)], tenant="small")
    for _ in producer.as_completed(small, timeout=900):
        pass
    statuses = producer.statuses(job.id for job in small)
    submitted_at = statuses[0].submitted_at
    last_start = max(_started_at(status) for status in statuses)
    started = [each for each in producer.statuses(job.id for job in flood) if each.started_at]
    between = sum(submitted_at < _started_at(status) <= last_start for status in started)
    assert between <= 3 * 8, "one prefetched batch, then every second image"


def test_at_most_one_batch_is_prefetched_and_only_late(
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
    assert _started_at(ahead) < (first.finished_at or 0.0)


def test_a_worker_fills_its_batches_with_jobs_of_like_step_counts(
    start: StartWorker, producer: Client
) -> None:
    mixed = [{"prompt": f"prompt {n}", "num_inference_steps": 2 + n % 2 * 10} for n in range(16)]
    jobs = producer.submit_many(mixed)
    start(IMAGEFLEET_MODEL="fake:seconds=0.02,capacity=4")
    for _ in producer.as_completed(jobs, timeout=900):
        pass
    by_start = sorted(producer.statuses(job.id for job in jobs), key=_started_at)
    steps = [status.request.num_inference_steps or 0 for status in by_start]
    assert steps == 2 * [*[2] * 4, *[12] * 4]


def test_a_job_without_steps_shares_a_batch_with_jobs_of_the_default_steps(
    start: StartWorker, producer: Client
) -> None:
    counts = 2 * [None, 2, FAKE_STEPS, 2]
    jobs = producer.submit_many(
        {"prompt": f"prompt {at}"} | ({"num_inference_steps": steps} if steps else {})
        for at, steps in enumerate(counts)
    )
    start(IMAGEFLEET_MODEL="fake:seconds=0.02,capacity=4")
    for _ in producer.as_completed(jobs, timeout=900):
        pass
    by_start = sorted(producer.statuses(job.id for job in jobs), key=_started_at)
    steps = [status.request.num_inference_steps for status in by_start]
    assert steps == [None, FAKE_STEPS] * 2 + [2] * 4


def test_images_left_over_from_a_batch_decide_what_joins_them(
    start: StartWorker, producer: Client
) -> None:
    three, few, many = {"num_images_per_prompt": 3}, 2, 12
    asked = [*2 * [(many, three)], *2 * [(few, {})], *2 * [(many, {})]]
    jobs = producer.submit_many(
        {"prompt": f"prompt {at}", "num_inference_steps": steps} | images
        for at, (steps, images) in enumerate(asked)
    )
    start(IMAGEFLEET_MODEL="fake:seconds=0.02,capacity=4")
    for _ in producer.as_completed(jobs, timeout=900):
        pass
    by_start = sorted(producer.statuses(job.id for job in jobs), key=_started_at)
    steps = [status.request.num_inference_steps or 0 for status in by_start]
    assert sorted(steps[2:4]) == [few, many], "two free slots: one for the head, one for like steps"


def test_a_batch_that_is_not_full_waits_and_a_full_one_does_not(
    start: StartWorker, producer: Client
) -> None:
    start(IMAGEFLEET_MODEL="fake:capacity=4", IMAGEFLEET_BATCH_TIMEOUT_S="60")
    first = producer.submit_many(["a", "b", "c"])
    until(lambda: all(job.status().state is State.RUNNING for job in first))
    last = producer.submit("d")
    for _ in producer.as_completed([*first, last], timeout=900):
        pass
    assert {job.status().state for job in [*first, last]} == {State.SUCCEEDED}
