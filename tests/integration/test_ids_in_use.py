"""Messages of plain Celery whose id another job has, or had before: each ends its own job only."""

from collections.abc import Mapping
from typing import Any

import pytest
from celery import Celery

from imagefleet import Client, State
from imagefleet.shared.jobs.celery_message import TASK_NAME
from imagefleet.shared.redis_client.connection import celery_url
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.jobs import finish
from tests.support.processes import StartWorker


class PlainCelery:
    """A producer that sends messages with Celery alone, which creates no record."""

    def __init__(self, url: str, namespace: str) -> None:
        self._url, self._queue = celery_url(url), f"{namespace}.default.native"

    def send(self, job_id: str, arguments: Mapping[str, Any], **options: Any) -> None:
        with Celery(broker=self._url, set_as_current=False) as app:
            app.send_task(
                TASK_NAME,
                kwargs=arguments,
                task_id=job_id,
                queue=self._queue,
                priority=3,
                **options,
            )


@pytest.fixture
def celery(redis_server: LocalRedisServer, namespace: str) -> PlainCelery:
    return PlainCelery(redis_server.url, namespace)


def test_a_job_with_the_id_of_an_expired_message_runs_in_the_same_worker(
    start: StartWorker, producer: Client, celery: PlainCelery
) -> None:
    celery.send("j", {"prompt": "expired long ago"}, expires=-10)
    worker = start()
    worker.await_log("Discarding revoked task: imagefleet.render[j]")
    job = producer.submit("a dog", id="j")
    assert finish(producer, [job]) == {State.SUCCEEDED}
