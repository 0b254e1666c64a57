"""`python -m tests.chaos.producer_process KIND JOBS JOURNAL`: one producer of a chaos run.

It submits its planned jobs when they are due. It repeats each one with the same id until the fleet
accepts it, and then writes the id to the journal before it goes on. Its settings come from the
environment, as a customer's do.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TextIO

import httpx
from celery import Celery
from kombu.exceptions import OperationalError

from imagefleet import Client
from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.jobs.celery_message import TASK_NAME
from imagefleet.shared.jobs.message_arguments import pack
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import queue_of
from imagefleet.shared.redis_client.connection import celery_url
from imagefleet.shared.settings.settings import Settings
from tests.chaos.gateways import URLS
from tests.chaos.planned_jobs import PlannedJob, ProducerKind, Scenario, read

_JOBS_PER_CALL = 40
_MAX_POLLED = 20
"""Jobs whose state is polled at a time, to cancel them while they run."""
_POLL_S = 0.1
_ANSWER_S = 60.0
_LATER = (408, 429, 503, 504)

Submit = Callable[[list[PlannedJob]], None]


class Cancellations:
    """The cancellations of this producer: some jobs at once, others when they run."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._to_cancel: list[str] = []
        self._when_running: list[str] = []

    def note(self, planned: list[PlannedJob]) -> None:
        for job in planned:
            if job.scenario is Scenario.CANCELLED_WAITING:
                self._to_cancel.append(job.id)
            elif job.scenario is Scenario.CANCELLED_RUNNING:
                self._when_running.append(job.id)

    def cancel_pending(self) -> None:
        """Cancel what is due. The rest stays noted.

        Raises:
            BrokerUnavailable: Redis is down. The next call tries again.
        """
        while self._to_cancel:
            self._client.cancel(self._to_cancel[-1])
            self._to_cancel.pop()
        watched = self._when_running[:_MAX_POLLED]
        for status in self._client.statuses(watched) if watched else ():
            if status.state is State.RUNNING:
                self._client.cancel(status.id)
            if status.state is State.RUNNING or status.done:
                self._when_running.remove(status.id)

    @property
    def pending(self) -> bool:
        return bool(self._to_cancel or self._when_running)


def with_submit(client: Client) -> Submit:
    def submit(planned: list[PlannedJob]) -> None:
        [job] = planned
        for _ in range(1 + job.resent):
            client.submit(id=job.id, **job.parameters)

    return submit


def with_submit_many(client: Client) -> Submit:
    def submit(planned: list[PlannedJob]) -> None:
        client.submit_many([{"id": job.id, **job.parameters} for job in planned])

    return submit


def with_celery(settings: Settings) -> Submit:
    url = celery_url(settings.redis_url.get_secret_value())
    app = Celery("producer", broker=url, set_as_current=False)

    def submit(planned: list[PlannedJob]) -> None:
        [job] = planned
        send_task(
            app,
            TASK_NAME,
            kwargs=pack(job.request),
            task_id=job.id,
            queue=queue_of(settings.namespace, job.request),
            priority=job.request.priority,
        )

    return submit


def with_predictions(urls: Sequence[str]) -> Submit:
    """Return a function that asks one gateway, and sees that the other knows what was accepted."""
    client = httpx.Client(timeout=_ANSWER_S)
    turns = cycle(urls)

    def submit(planned: list[PlannedJob]) -> None:
        [job] = planned
        parameters = {name: value for name, value in job.parameters.items() if value is not None}
        for _ in range(1 + job.resent):
            path = f"{next(turns)}/v1/predictions/{job.id}"
            _check(client.put(path, json={"input": parameters}), job)
        known = client.get(f"{next(turns)}/v1/predictions/{job.id}")
        assert known.status_code != httpx.codes.NOT_FOUND, f"{job.id} was accepted, and is unknown"

    return submit


def _check(answer: httpx.Response, job: PlannedJob) -> None:
    """Raise BrokerUnavailable if the gateway cannot accept now, AssertionError if it refuses."""
    if answer.status_code in _LATER:
        raise BrokerUnavailable(answer.text)
    assert answer.is_success, f"{job.id}: {answer.status_code} {answer.text}"


def send_task(app: Celery, name: str, **options: Any) -> None:
    """Send a task.

    Raises:
        OperationalError: Redis is down. kombu 5.7 sometimes raises AttributeError instead.
    """
    try:
        app.send_task(name, ignore_result=True, **options)
    except AttributeError as error:  # 'NoneType' object has no attribute 'client'
        raise OperationalError(str(error)) from error


def submit_until_accepted(submit: Submit, planned: list[PlannedJob]) -> None:
    while True:
        try:
            submit(planned)
        except (BrokerUnavailable, OperationalError, httpx.TransportError):
            time.sleep(_POLL_S)
        else:
            return


def due_jobs(planned: list[PlannedJob], began: float, size: int) -> Iterator[list[PlannedJob]]:
    """Yield parts of up to `size` jobs when the first of each is due, and [] while none is due."""
    waiting = iter(planned)
    for first in waiting:
        while time.monotonic() < began + first.due_s:
            yield []
        yield [first, *islice(waiting, size - 1)]


def produce(kind: ProducerKind, planned: list[PlannedJob], journal: TextIO) -> None:
    settings = Settings.load()
    client = Client(settings=settings)
    submit = {
        ProducerKind.SUBMIT: lambda: with_submit(client),
        ProducerKind.SUBMIT_MANY: lambda: with_submit_many(client),
        ProducerKind.CELERY: lambda: with_celery(settings),
        ProducerKind.HTTP: lambda: with_predictions(os.environ[URLS].split()),
    }[kind]()
    cancellations = Cancellations(client)
    size = _JOBS_PER_CALL if kind is ProducerKind.SUBMIT_MANY else 1
    for jobs in due_jobs(planned, time.monotonic(), size):
        if jobs:
            submit_until_accepted(submit, jobs)
            journal.writelines(f"{job.id}\n" for job in jobs)
            journal.flush()
            cancellations.note(jobs)
        else:
            time.sleep(_POLL_S)
        cancel_due(cancellations)
    while cancellations.pending:
        cancel_due(cancellations)
        time.sleep(_POLL_S)


def cancel_due(cancellations: Cancellations) -> None:
    try:
        cancellations.cancel_pending()
    except BrokerUnavailable:
        time.sleep(_POLL_S)


def main(kind: str, planned: str, journal: str) -> None:
    mine = [job for job in read(Path(planned)) if job.producer == kind]
    with Path(journal).open("w") as lines:
        produce(ProducerKind(kind), mine, lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
