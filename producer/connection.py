"""A producer's connection to the fleet: one Redis client, and the records read through it.

`Client` and bulk runs share it. This module knows neither job handles nor files.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.offers import Offer, OfferRegistry
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.tenants import Tenants
from imagefleet.shared.redis_client.connection import check_connection, connect, translate_errors
from imagefleet.shared.redis_client.server_check import find_fault, find_risks
from imagefleet.shared.settings import Settings
from imagefleet.shared.webhooks.outbox import Outbox

log = logging.getLogger(__name__)


class Connection:
    """The connection reaches Redis at its first command. Threads may share it."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Final = settings
        self._url = settings.redis_url.get_secret_value()
        self._redis = connect(self._url)
        namespace, retention_s = settings.namespace, settings.retention_s
        self.records: Final = JobRecords(self._redis, namespace, retention_s)
        self.tenants: Final = Tenants(self._redis, namespace)
        self.dead_letters: Final = DeadLetters(self._redis, namespace)
        self.outbox: Final = Outbox(self._redis, namespace, retention_s)
        self._offers = OfferRegistry(self._redis, namespace)
        self._runs = RunRecords(self._redis, namespace, retention_s)
        self._checked = False

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise BrokerUnavailable for Redis errors inside the block."""
        with translate_errors(self._url):
            yield

    @contextmanager
    def runs(self) -> Iterator[RunRecords]:
        """Yield the records of bulk runs; Redis errors in the block become BrokerUnavailable."""
        with self.translate_errors():
            yield self._runs

    def offers(self) -> dict[str, Offer]:
        """Return what the workers offer, by model. Empty before the first worker was ready."""
        with self.translate_errors():
            return self._offers.offers()

    def workers(self) -> list[str]:
        """Return the names of the living workers. A killed one counts until its lease expires."""
        with self.translate_errors():
            return self._offers.workers()

    def warn_if_no_worker(self) -> None:
        """Log a warning if no worker is alive; call it before blocking."""
        if not self.workers():
            log.warning("no worker is alive; unfinished work waits until a worker starts")

    def warn_about_server(self) -> None:
        """Log a warning, at the first call, if the settings of Redis endanger jobs."""
        if self._checked:
            return
        self._checked = True
        with suppress(Exception):  # only the jobs themselves need Redis' answers
            info = self._redis.info()
            for risk in filter(None, [find_fault(info), *find_risks(info)]):
                log.warning("%s", risk if risk.startswith("Redis") else f"Redis {risk}")

    def check(self) -> None:
        """Raise BrokerUnavailable unless Redis answers."""
        check_connection(self._redis, self._url)

    def close(self) -> None:
        """Close the connections to Redis."""
        self._redis.close()
