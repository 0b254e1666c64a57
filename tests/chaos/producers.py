"""A producer process: `python -m tests.chaos.producers KIND ORDERS JOURNAL`, settings as always.

Submits its orders when they are due, again and again with the same id until the fleet accepted
them, and writes down what it was promised: a line with the id, before it goes on.
"""

import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from celery import Celery
from kombu.exceptions import OperationalError

from imagefleet import Client
from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.jobs.celery_message import TASK_NAME
from imagefleet.shared.jobs.model import State, pack
from imagefleet.shared.jobs.queues import queue_of
from imagefleet.shared.redis_client.connection import celery_url
from imagefleet.shared.settings import Settings
from tests.chaos.orders import Fate, Order, Producer, read

_BUNDLE = 40
_WATCHED = 20
"""Jobs at a time that wait to be withdrawn while they run."""
_BREATH_S = 0.1

Submit = Callable[[list[Order]], None]


class Withdrawals:
    """Cancels what is to be cancelled: at once, or when it runs."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._at_once: list[str] = []
        self._when_running: list[str] = []

    def note(self, orders: list[Order]) -> None:
        for order in orders:
            if order.fate is Fate.WITHDRAWN_WAITING:
                self._at_once.append(order.id)
            elif order.fate is Fate.WITHDRAWN_RUNNING:
                self._when_running.append(order.id)

    def act(self) -> None:
        """Raises BrokerUnavailable; what is not done is still noted."""
        while self._at_once:
            self._client.cancel(self._at_once[-1])
            self._at_once.pop()
        watched = self._when_running[:_WATCHED]
        for status in self._client.statuses(watched) if watched else ():
            if status.state is State.RUNNING:
                self._client.cancel(status.id)
            if status.state is State.RUNNING or status.done:
                self._when_running.remove(status.id)

    @property
    def open(self) -> bool:
        return bool(self._at_once or self._when_running)


def one_by_one(client: Client) -> Submit:
    def submit(orders: list[Order]) -> None:
        [order] = orders
        for _ in range(1 + order.resent):
            client.submit(id=order.id, **order.parameters)

    return submit


def in_bundles(client: Client) -> Submit:
    def submit(orders: list[Order]) -> None:
        client.submit_many([{"id": order.id, **order.parameters} for order in orders])

    return submit


def with_celery(settings: Settings) -> Submit:
    url = celery_url(settings.redis_url.get_secret_value())
    app = Celery("somebody", broker=url, set_as_current=False)

    def submit(orders: list[Order]) -> None:
        [order] = orders
        send_task(
            app,
            TASK_NAME,
            kwargs=pack(order.request),
            task_id=order.id,
            queue=queue_of(settings.namespace, order.request),
            priority=order.request.priority,
        )

    return submit


def send_task(app: Celery, name: str, **options: Any) -> None:
    """Raises OperationalError also where kombu 5.7 trips over a Redis that has just gone."""
    try:
        app.send_task(name, ignore_result=True, **options)
    except AttributeError as error:  # 'NoneType' object has no attribute 'client'
        raise OperationalError(str(error)) from error


def until_accepted(submit: Submit, orders: list[Order]) -> None:
    while True:
        try:
            submit(orders)
        except (BrokerUnavailable, OperationalError):
            time.sleep(_BREATH_S)
        else:
            return


def due(orders: list[Order], began: float, size: int) -> Iterator[list[Order]]:
    """Bundles of up to `size` orders, the first of them due; empty ones while none is."""
    waiting = iter(orders)
    for first in waiting:
        while time.monotonic() < began + first.due_s:
            yield []
        yield [first, *islice(waiting, size - 1)]


def produce(kind: Producer, orders: list[Order], journal: TextIO) -> None:
    settings = Settings.load()
    client = Client(settings=settings)
    submit = {
        Producer.ONE_BY_ONE: lambda: one_by_one(client),
        Producer.BUNDLES: lambda: in_bundles(client),
        Producer.CELERY: lambda: with_celery(settings),
    }[kind]()
    withdrawals = Withdrawals(client)
    size = _BUNDLE if kind is Producer.BUNDLES else 1
    for bundle in due(orders, time.monotonic(), size):
        if bundle:
            until_accepted(submit, bundle)
            journal.writelines(f"{order.id}\n" for order in bundle)
            journal.flush()
            withdrawals.note(bundle)
        else:
            time.sleep(_BREATH_S)
        try_to(withdrawals)
    while withdrawals.open:
        try_to(withdrawals)
        time.sleep(_BREATH_S)


def try_to(withdrawals: Withdrawals) -> None:
    try:
        withdrawals.act()
    except BrokerUnavailable:
        time.sleep(_BREATH_S)


def main(kind: str, orders: str, journal: str) -> None:
    mine = [order for order in read(Path(orders)) if order.producer == kind]
    with Path(journal).open("w") as lines:
        produce(Producer(kind), mine, lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
