"""Real workers with continuous batching on a real Redis, with the fake engine and a real S3."""

from pathlib import Path

import pytest
import redis

from imagefleet import Client
from imagefleet.shared.jobs.model import State
from imagefleet.worker.engine.fake.fake_engine import DIE, FAIL, HANG
from imagefleet.worker.process.exit_codes import ExitCode
from tests.support.files import files_below
from tests.support.jobs import finish
from tests.support.processes import StartWorker, until
from tests.support.s3 import signed_s3

SHAPES = ((64, 64), (64, 128))


@pytest.fixture
def settings(settings: dict[str, str]) -> dict[str, str]:
    return {
        **settings,
        "IMAGEFLEET_BATCHING": "continuous",
        "IMAGEFLEET_MODEL": "fake:seconds=0.02,decode=0.02,capacity=4,streams=2",
        "IMAGEFLEET_SHAPES": ",".join(f"{height}x{width}" for height, width in SHAPES),
    }


def _nothing_left(client: redis.Redis, namespace: str) -> bool:
    return not list(client.scan_iter(f"{namespace}.*")) and not client.keys(f"{namespace}:claims:*")


def test_jobs_of_many_lengths_and_two_shapes_make_exactly_their_images(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    with signed_s3() as s3:
        start(IMAGEFLEET_STORAGE_URL=s3.url("run"), **s3.credentials.environment())
        jobs = [
            producer.submit(
                f"prompt {n}",
                num_inference_steps=1 + 7 * n % 40,
                num_images_per_prompt=1 + n % 3,
                height=SHAPES[n % 2][0],
                width=SHAPES[n % 2][1],
            )
            for n in range(24)
        ]
        assert finish(producer, jobs, timeout=240) == {State.SUCCEEDED}
        for n, job in enumerate(jobs):
            images = job.result().images
            assert [image.index for image in images] == list(range(1 + n % 3))
            assert {(image.height, image.width) for image in images} == {SHAPES[n % 2]}
    until(lambda: _nothing_left(client, namespace))


def test_images_equal_those_of_a_worker_with_whole_batches(
    start: StartWorker, producer: Client
) -> None:
    def pixels() -> list[str | None]:
        jobs = [producer.submit(f"p {n}", seed=n, num_inference_steps=2 + n) for n in range(8)]
        assert finish(producer, jobs, timeout=120) == {State.SUCCEEDED}
        return [job.result().images[0].pixel_sha256 for job in jobs]

    worker = start()
    continuous = pixels()
    assert worker.terminate() == 0
    start(IMAGEFLEET_BATCHING="static")
    assert pixels() == continuous


def test_jobs_of_a_killed_worker_are_finished_by_the_next(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    first = start(IMAGEFLEET_MODEL="fake:seconds=60,capacity=4,streams=2")
    jobs = producer.submit_many([f"prompt {n}" for n in range(16)], num_inference_steps=10)
    until(lambda: any(job.status().state is State.RUNNING for job in jobs))
    first.kill()
    start()
    assert finish(producer, jobs, timeout=120) == {State.SUCCEEDED}
    assert max(job.status().deliveries for job in jobs) == 2
    until(lambda: _nothing_left(client, namespace))


def test_a_cancelled_job_leaves_its_slot_while_its_neighbours_go_on(
    start: StartWorker, producer: Client
) -> None:
    start(IMAGEFLEET_MODEL="fake:seconds=0.6,capacity=2,streams=1")
    neighbour, cancelled = producer.submit_many(["n", "c"], num_inference_steps=100)
    until(lambda: all(job.status().step for job in (neighbour, cancelled)))
    later = producer.submit("later", num_inference_steps=2)
    assert cancelled.cancel()
    assert finish(producer, [cancelled, later], timeout=120) == {
        State.CANCELLED,
        State.SUCCEEDED,
    }
    assert neighbour.status().state is State.RUNNING
    neighbour.cancel()
    assert finish(producer, [neighbour]) == {State.CANCELLED}


def test_a_failing_job_fails_alone_and_a_deadly_one_takes_no_other_with_it(
    start: StartWorker, producer: Client
) -> None:
    start()
    good = producer.submit_many([f"good {n}" for n in range(10)], num_inference_steps=20)
    bad = producer.submit(f"bad {FAIL}", num_inference_steps=20)
    assert finish(producer, good, timeout=120) == {State.SUCCEEDED}
    assert finish(producer, [bad], timeout=120) == {State.FAILED}
    assert bad.status().error is not None


def test_a_deadly_job_runs_alone_from_its_third_delivery_on(
    start: StartWorker, producer: Client
) -> None:
    first = start()
    deadly = producer.submit(f"deadly {DIE}", num_inference_steps=5)
    good = producer.submit_many([f"good {n}" for n in range(6)], num_inference_steps=30)
    workers = [first]
    while deadly.status().state not in {State.FAILED}:
        workers[-1].wait()
        workers.append(start())
        until(lambda: deadly.status().state is State.FAILED or workers[-1].process.poll())
    assert finish(producer, good, timeout=120) == {State.SUCCEEDED}
    assert max(job.status().deliveries for job in good) <= 3


def test_a_hanging_stream_ends_the_worker_and_counts_only_its_own_job(
    start: StartWorker, producer: Client
) -> None:
    worker = start(
        IMAGEFLEET_MODEL="fake:seconds=0.5,capacity=2,streams=2", IMAGEFLEET_WATCHDOG_S="4"
    )
    running = producer.submit("runs", num_inference_steps=100)
    until(lambda: running.status().step)
    hanging = producer.submit(f"hangs {HANG}", num_inference_steps=5)
    assert worker.wait(300) == ExitCode.IOERR
    assert running.status().state is State.QUEUED
    start(IMAGEFLEET_MODEL="fake:capacity=2,streams=2")
    assert finish(producer, [running], timeout=120) == {State.SUCCEEDED}
    assert running.status().deliveries == 1
    until(lambda: hanging.status().deliveries == 2)


def test_sigterm_requeues_what_has_not_started_and_loses_nothing(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    first = start(IMAGEFLEET_MODEL="fake:seconds=0.2,capacity=4,streams=2")
    jobs = producer.submit_many([f"prompt {n}" for n in range(16)], num_inference_steps=20)
    until(lambda: any(job.status().step for job in jobs))
    assert first.terminate() == 0
    assert not client.keys(f"{namespace}:claims:*")
    states = {job.status().state for job in jobs}
    assert states == {State.SUCCEEDED, State.QUEUED}
    start()
    assert finish(producer, jobs, timeout=120) == {State.SUCCEEDED}
    assert {job.status().deliveries for job in jobs} == {1}
    assert len([path for path in files_below(tmp_path / "store") if path.suffix == ".png"]) == 16


def test_previews_and_progress_come_from_a_job_s_own_slot(
    start: StartWorker, producer: Client
) -> None:
    start(IMAGEFLEET_MODEL="fake:seconds=0.5,capacity=2,streams=1")
    first = producer.submit("first", num_inference_steps=80, preview=True)
    until(lambda: (first.status().step or 0) > 5)
    second = producer.submit("second", num_inference_steps=80)
    until(lambda: second.status().step)
    assert (second.status().step or 0) < (first.status().step or 0)
    until(lambda: first.status().preview)
    for job in (first, second):
        job.cancel()
    assert finish(producer, [first, second]) == {State.CANCELLED}
