"""Hold what the requests of one gateway process share."""

import asyncio
from collections.abc import Callable
from typing import Final

from imagefleet.producer.client.client import Client
from imagefleet.producer.fleet.snapshot import SnapshotReader
from imagefleet.producer.gateway.access.authenticate import Authenticator
from imagefleet.producer.gateway.access.fleet_secret import FleetSecret
from imagefleet.producer.gateway.access.image_quota import ImageQuota
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.producer.gateway.access.rates import RequestRates
from imagefleet.producer.gateway.access.trusted_proxy import TrustedProxy
from imagefleet.producer.gateway.access.wrong_keys import WrongKeys
from imagefleet.producer.gateway.files.tenant_files import TenantFiles
from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from imagefleet.producer.gateway.jobs.addresses import ImageAddresses
from imagefleet.producer.gateway.jobs.caller_images import CallerImages
from imagefleet.producer.gateway.jobs.cancel_deadlines import SWEEP_EVERY_S, CancelDeadlines
from imagefleet.producer.gateway.jobs.images import JobImages
from imagefleet.producer.gateway.jobs.repeats import Repeats
from imagefleet.producer.gateway.jobs.search import JobSearch
from imagefleet.producer.gateway.jobs.stars import JobStars
from imagefleet.producer.gateway.jobs.tenant_index import TenantIndex
from imagefleet.producer.gateway.jobs.tenant_jobs import TenantJobs
from imagefleet.producer.gateway.jobs.watch import JobWatcher
from imagefleet.producer.gateway.threads import Threads, store_threads, upload_threads

_THREADS: Final = 32
_REDIS_S: Final = 10.0
"""Seconds in which Redis answers a request, or it is answered with 503."""
_STORE_THREADS: Final = 32
"""A store that hangs takes all of these, and keeps nobody else waiting."""
_STORE_S: Final = 30.0
"""The same for what is read from the store."""
_UPLOADS_AT_ONCE: Final = 16
"""Files and input images, whose size may need minutes. They end by the store's own timeouts."""
_UPLOAD_BEGINS_S: Final = 60.0
"""Seconds for which an upload waits while all its threads are busy."""
_SEARCHES_AT_ONCE: Final = 4
"""A search of jobs keeps a core busy while it lasts."""
_LOAD_SECRET_EVERY_S: Final = 1.0
_PROBE_S: Final = 2.0
"""Seconds in which Redis, and then the store, answers a load balancer, or counts as away."""
_DECODED_AT_ONCE: Final = 2
"""A small file may hold an image of 200 MB."""


class Gateway:
    """A gateway holds these parts. Build it before the event loop runs, and close it after."""

    def __init__(self, settings: GatewaySettings, *, require_keys: bool) -> None:
        """
        Args:
            require_keys: False answers programs of this host without a key.
        """
        self.settings: Final = settings
        self.needs_keys: Final = require_keys
        self.webhook_secrets: Final = settings.signing_secrets()
        self.threads: Final = Threads(_THREADS, within_s=_REDIS_S)
        self.store_threads: Final = store_threads(_STORE_THREADS, _STORE_S)
        self.uploads: Final = upload_threads(_UPLOADS_AT_ONCE, _UPLOAD_BEGINS_S)
        self.searches: Final = Threads(_SEARCHES_AT_ONCE, within_s=_REDIS_S)
        self.decoding: Final = Threads(_DECODED_AT_ONCE)
        self.redis_probe: Final = Threads(1, within_s=_PROBE_S)
        self.store_probe: Final = store_threads(1, _PROBE_S)
        self.client: Final = Client(settings=settings)
        connection = self.client.connection
        self.watcher: Final = JobWatcher(connection)
        self.authenticator: Final = Authenticator(
            ApiKeys(connection) if require_keys else None,
            RequestRates(connection),
            WrongKeys(settings.http_wrong_keys_per_minute),
            self.threads,
            TrustedProxy(settings.http_user_header, settings.proxies),
        )
        self.secret: Final = FleetSecret(connection)
        self.addresses: Final = ImageAddresses(self.secret, settings.http_image_url_s)
        self.files: Final = TenantFiles(connection, self.secret, settings.http_file_keep_s)
        self.inputs: Final = CallerImages(self.addresses, self.files)
        self.repeats: Final = Repeats(
            connection, self.threads, settings.http_repeat_s, settings.http_user_header
        )
        self.quota: Final = ImageQuota(connection)
        self.index: Final = TenantIndex(connection)
        self.jobs: Final = TenantJobs(
            self.client,
            self.watcher,
            self.threads,
            self.uploads,
            self.inputs,
            self.quota,
            self.index,
        )
        self.images: Final = JobImages(self.jobs, self.addresses, self.store_threads, connection)
        self.stars: Final = JobStars(connection)
        self.search: Final = JobSearch(connection, self.index, self.stars)
        self.deadlines: Final = CancelDeadlines(connection)
        self.fleet: Final = SnapshotReader(settings)
        self._repeating: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Read what all gateways of the fleet share. Raises BrokerUnavailable."""
        await self.threads.run(self.secret.load)
        self._repeat(self.secret.load, _LOAD_SECRET_EVERY_S, "the fleet's secret is not read")
        self._repeat(self.deadlines.sweep, SWEEP_EVERY_S, "no job is cancelled at its deadline")

    def _repeat(self, function: Callable[[], object], pause_s: float, without: str) -> None:
        repeating = self.threads.repeat(function, pause_s, without)
        self._repeating.append(asyncio.create_task(repeating))

    def close(self) -> None:
        """End all waiting, and close the connections to Redis."""
        for task in self._repeating:
            task.cancel()
        self.watcher.close()
        self.fleet.close()
        self.client.close()
