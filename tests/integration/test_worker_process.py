"""A real Celery worker process on a real Redis, with the fake engine: no job is lost."""

import base64
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult

from imagefleet import Client, Job
from imagefleet.shared.errors import InvalidInput, JobCancelled, JobFailed, UnknownJob
from imagefleet.shared.jobs.celery_message import TASK_NAME, job_message
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.message_arguments import pack
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.connection import celery_url, connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.process.exit_codes import ExitCode
from tests.support.control_messages import remote_control_app
from tests.support.files import files_below
from tests.support.hostile_messages import with_body
from tests.support.jobs import finish
from tests.support.processes import PATIENT, StartWorker, until

ENDLESS = "fake:seconds=60,capacity=8"
"""A model whose batches take longer than any test."""


def _nothing_left(client: redis.Redis, namespace: str) -> bool:
    queues = list(client.scan_iter(f"{namespace}.*"))
    return not queues and not client.keys(f"{namespace}:claims:*")


def _image_files(folder: Path) -> list[Path]:
    return [path for path in files_below(folder / "store") if path.suffix == ".png"]


def _push(client: redis.Redis, namespace: str, message: str | bytes) -> None:
    client.lpush(list_key(f"{namespace}.default.native", 3), message)


def test_an_error_of_the_user_is_logged_in_one_line_and_reaches_celery_s_result(
    start: StartWorker, producer: Client, redis_server: LocalRedisServer
) -> None:
    worker = start()
    job = producer.submit("a", image="inputs/no-such.png")
    assert finish(producer, [job]) == {State.FAILED}
    url = celery_url(redis_server.url)
    with (
        Celery(broker=url, backend=url, set_as_current=False) as app,
        pytest.raises(InvalidInput, match="image: there is no"),
    ):
        AsyncResult(job.id, app=app).get(timeout=900)
    assert worker.terminate() == 0
    assert "raised expected: InvalidInput(" in worker.output()
    assert "Traceback" not in worker.output()


def test_every_submitted_job_makes_exactly_its_images(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    start()
    jobs = producer.submit_many([f"prompt {i}" for i in range(30)], num_images_per_prompt=2)
    assert finish(producer, jobs, timeout=900) == {State.SUCCEEDED}
    for job in jobs:
        images = job.result().images
        assert [image.index for image in images] == [0, 1]
        assert all(
            (tmp_path / "store" / image.key).stat().st_size == image.size for image in images
        )
    assert len(_image_files(tmp_path)) == 60
    until(lambda: _nothing_left(client, namespace))


def test_jobs_of_a_killed_worker_are_finished_by_the_next(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    first = start(IMAGEFLEET_MODEL=ENDLESS)
    jobs = producer.submit_many([f"prompt {i}" for i in range(24)], num_inference_steps=10)
    until(lambda: any(job.status().state is State.RUNNING for job in jobs))
    first.kill()
    start()
    assert finish(producer, jobs, timeout=900) == {State.SUCCEEDED}
    deliveries = [job.status().deliveries for job in jobs]
    assert max(deliveries) == 2
    until(lambda: _nothing_left(client, namespace))


def test_jobs_of_a_frozen_worker_are_reclaimed_and_its_late_result_changes_nothing(
    start: StartWorker, producer: Client
) -> None:
    frozen = start(IMAGEFLEET_MODEL="fake:seconds=1,capacity=2")
    jobs = producer.submit_many(["a", "b"], num_inference_steps=10)
    until(lambda: all(job.status().state is State.RUNNING for job in jobs))
    frozen.freeze()
    start()
    assert finish(producer, jobs, timeout=900) == {State.SUCCEEDED}
    results = [job.result() for job in jobs]
    frozen.thaw()
    frozen.await_log("the lease ran out")
    extra = producer.submit("after the thaw")
    assert finish(producer, [extra], timeout=900) == {State.SUCCEEDED}
    assert [job.result() for job in jobs] == results


def test_sigterm_requeues_jobs_that_have_not_started_and_loses_none(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    first = start(IMAGEFLEET_MODEL="fake:seconds=0.5,capacity=4")
    jobs = producer.submit_many([f"prompt {i}" for i in range(16)], num_inference_steps=10)
    until(lambda: any(job.status().step for job in jobs))  # a running job may not be on the devices
    assert first.terminate() == 0
    assert not client.keys(f"{namespace}:claims:*")
    states = [job.status().state for job in jobs]
    assert State.SUCCEEDED in states
    assert State.QUEUED in states
    start()
    assert finish(producer, jobs, timeout=900) == {State.SUCCEEDED}
    assert {job.status().deliveries for job in jobs} == {1}


def test_sigterm_requeues_claimed_jobs_that_are_not_on_the_devices(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    first = start(IMAGEFLEET_MODEL="fake:seconds=8,capacity=4")
    jobs = producer.submit_many(["a", "b"], num_images_per_prompt=4, num_inference_steps=2)
    # The second job is prefetched while the devices run the last step of the first.
    until(lambda: all(job.status().state is State.RUNNING for job in jobs))
    assert first.terminate() == 0
    states = [job.status().state for job in jobs]
    assert set(states) == {State.SUCCEEDED, State.QUEUED}
    assert client.llen(list_key(f"{namespace}.default.native", 3)) == states.count(State.QUEUED)
    job = "1 job with 4 images"
    assert f"drained: {job} ended; {job} requeued; callbacks that wait in the fleet: 0\n" in (
        first.output()
    )
    start()
    assert finish(producer, jobs, timeout=900) == {State.SUCCEEDED}


def test_jobs_that_outlast_the_drain_time_are_requeued(
    start: StartWorker, producer: Client
) -> None:
    first = start(IMAGEFLEET_MODEL=ENDLESS, IMAGEFLEET_DRAIN_S="0.5")
    jobs = producer.submit_many(["a", "b"], num_inference_steps=10)
    until(lambda: all(job.status().state is State.RUNNING for job in jobs))
    first.terminate()
    assert {job.status().state for job in jobs} == {State.QUEUED}
    start()
    assert finish(producer, jobs, timeout=900) == {State.SUCCEEDED}
    assert {job.status().deliveries for job in jobs} == {1}


def test_a_poison_prompt_fails_alone(start: StartWorker, producer: Client) -> None:
    start()
    good = producer.submit_many([f"good {i}" for i in range(7)])
    bad = producer.submit("this one [fail]s")
    assert finish(producer, good, timeout=900) == {State.SUCCEEDED}
    with pytest.raises(JobFailed) as failed:
        bad.result(timeout=900)
    assert failed.value.failure_code == "device_error"


def test_a_prompt_that_kills_its_worker_fails_after_max_deliveries(
    start: StartWorker, producer: Client
) -> None:
    job = producer.submit("this one [die]s")
    for _ in range(2):
        assert start(IMAGEFLEET_MAX_DELIVERIES="2").wait() != 0
    start(IMAGEFLEET_MAX_DELIVERIES="2")
    with pytest.raises(JobFailed, match="2 workers died with this job") as failed:
        job.result(timeout=900)
    assert failed.value.failure_code == "too_many_deliveries"


def test_a_prompt_that_kills_its_workers_fails_no_other_job_of_its_batch(
    start: StartWorker, producer: Client
) -> None:
    poison = producer.submit("this one [die]s")
    others = producer.submit_many([f"good {i}" for i in range(7)])
    for _ in range(4):
        assert start(IMAGEFLEET_LEASE_S="2").wait() != 0
    start()
    assert finish(producer, others, timeout=900) == {State.SUCCEEDED}
    with pytest.raises(JobFailed, match="4 workers died"):
        poison.result(timeout=900)


def test_an_expired_job_ends_cancelled_even_after_a_worker_died_with_it(
    start: StartWorker,
    producer: Client,
    client: redis.Redis,
    redis_server: LocalRedisServer,
    namespace: str,
) -> None:
    first = start(IMAGEFLEET_MODEL=ENDLESS)
    url = celery_url(redis_server.url)
    with Celery(broker=url, set_as_current=False) as app:
        sent = app.send_task(
            TASK_NAME,
            kwargs=pack(JobRequest(prompt="a")),
            queue=f"{namespace}.default.native",
            expires=3600,
        )
    until(lambda: _state(producer, sent.id) is State.RUNNING)
    first.kill()
    [claims] = client.keys(f"{namespace}:claims:*")
    [(tag, entry)] = cast(dict[str, str], client.hgetall(claims)).items()
    client.hset(claims, tag, _with_header_now(entry, "expires"))
    start()
    until(lambda: _state(producer, sent.id) is State.CANCELLED)


def _with_header_now(entry: str, header: str) -> str:
    """Return an entry whose message is due, or expires, now: as if the time had passed."""
    queue, _, text = entry.partition("\0")
    message = json.loads(text)
    now = datetime.now(UTC).isoformat()
    assert message["headers"][header] > now
    message["headers"][header] = now
    return f"{queue}\0{json.dumps(message)}"


def _state(producer: Client, job_id: str) -> State | None:
    try:
        return producer.get(job_id).status().state
    except UnknownJob:
        return None


def test_a_delayed_job_survives_a_lost_connection(
    start: StartWorker,
    producer: Client,
    client: redis.Redis,
    redis_server: LocalRedisServer,
    namespace: str,
) -> None:
    start()
    url = celery_url(redis_server.url)
    with Celery(broker=url, backend=url, set_as_current=False) as app:
        sent = app.send_task(
            TASK_NAME,
            kwargs=pack(JobRequest(prompt="a")),
            queue=f"{namespace}.default.native",
            countdown=3600,
        )
        later = f"{namespace}:later"
        [entry] = until(lambda: cast(list[str], client.zrange(later, 0, -1)))
        client.client_kill_filter(_type="normal", skipme=True)
        client.zadd(later, {_with_header_now(entry, "eta"): time.time()})
        client.zrem(later, entry)
        assert sent.get(timeout=900)["model"] == "fake"


def test_an_undeclared_shape_is_refused_even_if_submitted_before_any_worker(
    start: StartWorker, producer: Client
) -> None:
    job = producer.submit("a", height=512, width=512)
    elsewhere = producer.submit("a", model="no-such-model")
    start()
    assert finish(producer, [job], timeout=900) == {State.FAILED}
    assert elsewhere.status().state is State.QUEUED  # a job waits for a worker of its model


def test_sigterm_while_redis_is_away_ends_the_worker_and_loses_no_job(
    own_redis: LocalRedisServer, start: StartWorker, namespace: str
) -> None:
    more = {"IMAGEFLEET_REDIS_URL": own_redis.url, "IMAGEFLEET_DRAIN_S": "1"}
    first = start(IMAGEFLEET_MODEL="fake:seconds=0.5,capacity=2", **more)
    producer = Client(own_redis.url, namespace=namespace)
    jobs = producer.submit_many(["a", "b", "c"], num_inference_steps=20)
    until(lambda: any(job.status().state is State.RUNNING for job in jobs))
    own_redis.kill()
    first.process.terminate()
    first.wait(300)
    own_redis.start()
    start(**more)
    assert finish(producer, jobs, timeout=900) == {State.SUCCEEDED}


def test_the_shutdown_command_of_celery_requeues_jobs_too(
    start: StartWorker, producer: Client, redis_server: LocalRedisServer, namespace: str
) -> None:
    first = start(*PATIENT, IMAGEFLEET_MODEL=ENDLESS, IMAGEFLEET_DRAIN_S="1")
    jobs = producer.submit_many(["a", "b", "c"])
    until(lambda: {job.status().state for job in jobs} == {State.RUNNING})
    with remote_control_app(redis_server.url, namespace) as app:
        until(lambda: app.control.ping(timeout=1))  # a command before the worker listens is lost
        app.control.shutdown()
    assert first.wait() == 0
    _check_requeued_and_rerun(jobs, start, producer)


def test_a_second_signal_requeues_at_once(start: StartWorker, producer: Client) -> None:
    model = "fake:seconds=1,capacity=8"
    first = start(*PATIENT, IMAGEFLEET_MODEL=model, IMAGEFLEET_DRAIN_S="600")
    jobs = producer.submit_many(["a", "b", "c"], num_inference_steps=100)
    until(lambda: any(job.status().step for job in jobs))  # a running job may not be on the devices
    first.process.terminate()
    first.await_log("Warm shutdown")
    first.process.terminate()
    assert first.wait() == ExitCode.TEMPFAIL
    _check_requeued_and_rerun(jobs, start, producer)


def _check_requeued_and_rerun(jobs: list[Job], start: StartWorker, producer: Client) -> None:
    assert {job.status().state for job in jobs} == {State.QUEUED}
    start()
    assert finish(producer, jobs, timeout=900) == {State.SUCCEEDED}
    assert {job.status().deliveries for job in jobs} == {1}


def test_cancelled_jobs_leave_no_image(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    queued = producer.submit("withdrawn before a worker saw it")
    queued.cancel()
    start(IMAGEFLEET_MODEL="fake:seconds=1,capacity=1")
    running = producer.submit("withdrawn on the device", num_inference_steps=20)
    until(lambda: running.status().state is State.RUNNING)
    assert running.cancel() is State.RUNNING
    for job in (queued, running):
        with pytest.raises(JobCancelled):
            job.result(timeout=900)
    assert not _image_files(tmp_path)


def _envelope(**changes: object) -> str:
    """Return a valid message with some parts replaced."""
    whole = with_body(job_message("nobody", JobRequest(prompt="a"), "q"), {})
    return json.dumps({**whole, **changes})


def _body(value: object) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


UNREADABLE = [
    "[" * 100_000,
    _envelope(properties=[]),
    _envelope(headers={"task": TASK_NAME, "id": 5}),
    _envelope(headers={"task": TASK_NAME, "id": "x", "stamped_headers": 5}),
    _envelope(headers={"task": TASK_NAME, "id": "x", "eta": "tomorrow"}),
    _envelope(headers={"task": [], "id": "x"}),
    _envelope(body=_body(None)),
    _envelope(body=_body("text")),
    "not json",
    "{}",
    '{"body": 5, "headers": {"task": "imagefleet.render", "id": "x"}, "properties": {}}',
    '{"headers": {"task": "nobody.knows", "id": "x"}, "body": "", "properties": {}}',
    '{"body":"AA==","content-type":"application/json","content-encoding":"utf-8",'
    '"headers":{"task":"imagefleet.render","id":"x"},'
    '"properties":{"body_encoding":"base64","delivery_info":{}}}',
    '{"body":"AA==","content-type":"application/x-python-serialize","content-encoding":"binary",'
    '"headers":{"task":"imagefleet.render","id":"x"},'
    '"properties":{"body_encoding":"base64","delivery_info":{}}}',
]


def test_unreadable_messages_become_dead_letters_and_the_worker_goes_on(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    for message in UNREADABLE:
        _push(client, namespace, message)
    _push(client, namespace, b"\xff\xfe broken utf-8")
    job = producer.submit("a good one behind them")
    start()
    assert finish(producer, [job], timeout=900) == {State.SUCCEEDED}
    letters = DeadLetters(client, namespace).read()
    assert len(letters) == len(UNREADABLE) + 1
    assert all(letter.reason for letter in letters)
    until(lambda: _nothing_left(client, namespace))


def _task_arguments(request: dict[str, Any], version: int = 1) -> dict[str, Any]:
    return {"version": version, "request": request}


REFUSED = [
    (_task_arguments({"prompt": "a"}, version=0), "message_rejected"),
    (_task_arguments({"prompt": ""}), "invalid_request"),
    (_task_arguments({"prompt": "a", "height": 512, "width": 512}), "invalid_request"),
    (_task_arguments({"prompt": "a", "model": "unknown"}), "invalid_request"),
    (_task_arguments({"prompt": "a", "scheduler": "unknown"}), "invalid_request"),
    (_task_arguments({"prompt": "a", "num_inference_steps": 1000}), "invalid_request"),
    ({}, "invalid_request"),
    ([], "message_rejected"),
    (None, "message_rejected"),
]


def test_a_job_the_producer_should_have_refused_fails_at_the_worker_with_its_reason(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    jobs = producer.submit_many(["as accepted"] * len(REFUSED))
    client.delete(list_key(f"{namespace}.default.native", 3))
    for job, (kwargs, _) in zip(jobs, REFUSED, strict=True):
        message = with_body(job_message(job.id, job.status().request, "q"), kwargs)
        _push(client, namespace, json.dumps(message))
    start()
    assert finish(producer, jobs, timeout=900) == {State.FAILED}
    errors = [job.status().error for job in jobs]
    assert [error.code for error in errors if error] == [code for _, code in REFUSED]
    until(lambda: _nothing_left(client, namespace))


def test_plain_celery_can_send_jobs_and_read_results(
    start: StartWorker, producer: Client, redis_server: LocalRedisServer, namespace: str
) -> None:
    start("-m", "celery", "-A", "imagefleet.worker.app", "worker", "--loglevel", "INFO")
    url = celery_url(redis_server.url)
    with Celery(broker=url, backend=url, set_as_current=False) as app:
        request = JobRequest.parse({"prompt": "from celery", "seed": 5})
        sent = app.send_task(
            TASK_NAME, kwargs=pack(request), queue=f"{namespace}.default.native", priority=3
        )
        assert sent.get(timeout=900)["images"][0]["seed"] == 5
        assert producer.get(sent.id).status().state is State.SUCCEEDED
        job = producer.submit("from the client")
        assert AsyncResult(job.id, app=app).get(timeout=900)["model"] == "fake"


def test_a_restart_of_redis_loses_no_job_and_counts_no_delivery(
    own_redis: LocalRedisServer, settings: dict[str, str], start: StartWorker, namespace: str
) -> None:
    start(IMAGEFLEET_REDIS_URL=own_redis.url, IMAGEFLEET_MODEL="fake:seconds=0.4,capacity=8")
    producer = Client(own_redis.url, namespace=namespace)
    jobs = producer.submit_many([f"prompt {i}" for i in range(40)], num_inference_steps=5)
    for _ in range(2):
        until(lambda: any(job.status().state is State.RUNNING for job in jobs))
        own_redis.kill()
        own_redis.start()
    assert finish(producer, jobs, timeout=900) == {State.SUCCEEDED}
    assert {job.status().deliveries for job in jobs} == {1}
    client = connect(own_redis.url)
    until(lambda: _nothing_left(client, namespace))
