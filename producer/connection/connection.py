"""A producer's connection to the fleet: a Redis client for each lane, and what is read with it.

`Client` and bulk runs share it. This module uses no job handles.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from imagefleet.producer.connection.lane_records import LaneRecords
from imagefleet.shared.errors import (
    BrokerUnavailable,
    ConfigurationError,
    InvalidRequest,
    UnreadableRecord,
)
from imagefleet.shared.jobs.model import TERMINAL, State, check_job_id
from imagefleet.shared.jobs.offers import Offer, OfferRegistry
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.recent_ends import RecentEnds
from imagefleet.shared.jobs.record_marks import Mark
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.redis_client.cluster_check import check_number
from imagefleet.shared.redis_client.connection import check_decodes, connect_lanes, translate_errors
from imagefleet.shared.redis_client.lanes import Lanes
from imagefleet.shared.redis_client.memory import RedisMemory, read_fullest_memory
from imagefleet.shared.redis_client.server_check import find_fault, find_risks
from imagefleet.shared.settings.settings import Settings
from imagefleet.shared.storage import ObjectStore, folder_of, open_store
from imagefleet.shared.storage.job_keys import job_folder

if TYPE_CHECKING:  # their models take long to build, and few producers use them
    from redis import Redis

    from imagefleet.producer.connection.lane_dead_letters import LaneDeadLetters
    from imagefleet.producer.connection.lane_outbox import LaneOutbox
    from imagefleet.producer.connection.lane_runs import LaneRuns
    from imagefleet.shared.bulk.runs import RunRecords
    from imagefleet.shared.jobs.fleet_status import FleetReader, FleetStatus
    from imagefleet.shared.jobs.tenants import Tenants
    from imagefleet.shared.jobs.worker_status import WorkerStatus

log = logging.getLogger(__name__)


class Connection:
    """The connection reaches Redis at its first command. Threads may share it."""

    def __init__(self, settings: Settings, redis: "Redis | None" = None, **options: Any) -> None:
        """Take a client of another owner, or the options of `connect_lanes`."""
        self.settings: Final = settings
        self._storage_url = settings.storage_url
        self._stores: dict[str, ObjectStore] = {}
        self._url = settings.redis_url.get_secret_value()
        self.lanes: Final = (
            connect_lanes(self._url, settings.namespace, lanes=settings.lanes, **options)
            if redis is None
            else Lanes.single(check_decodes(redis), settings.namespace)
        )
        self.redis: Final = self.lanes.first.client
        """The client of what is of the whole fleet, whose keys begin with `namespace`."""
        self.namespace: Final = self.lanes.first.namespace
        self.records: Final = LaneRecords(self.lanes, settings.retention_s)
        self.recent_ends: Final = RecentEnds(self.lanes)
        self._offers = OfferRegistry(self.redis, self.namespace, keeps_known=len(self.lanes) > 1)
        self._checked = self._warned_of_no_worker = False
        self._lanes_compared = redis is not None or not settings.in_cluster

    @cached_property
    def tenants(self) -> "Tenants":
        """What reads and sets the weights and limits of tenants."""
        from imagefleet.shared.jobs.tenants import Tenants

        return Tenants(self.lanes)

    @cached_property
    def dead_letters(self) -> "LaneDeadLetters":
        """What reads and redrives messages that the fleet gave up."""
        from imagefleet.producer.connection.lane_dead_letters import LaneDeadLetters

        return LaneDeadLetters(self.lanes)

    @cached_property
    def outbox(self) -> "LaneOutbox":
        """What reads and replays callbacks that wait or were given up."""
        from imagefleet.producer.connection.lane_outbox import LaneOutbox

        return LaneOutbox(self.lanes, self.settings.retention_s)

    @cached_property
    def fleet(self) -> "FleetReader":
        """What reads the workers and the queues."""
        from imagefleet.shared.jobs.fleet_status import FleetReader

        return FleetReader(self.lanes)

    @cached_property
    def _runs(self) -> "LaneRuns":
        from imagefleet.producer.connection.lane_runs import LaneRuns

        return LaneRuns(self.lanes, self.settings.retention_s)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise BrokerUnavailable for Redis errors inside the block.

        Raises:
            ConfigurationError: the fleet in this cluster was made with another number of lanes.
        """
        if not self._lanes_compared:
            self._lanes_compared = check_number(self.lanes, self._url, self.settings.namespace)
        with translate_errors(self._url):
            yield

    @contextmanager
    def runs(self, run: str) -> "Iterator[RunRecords]":
        """Yield the records of a bulk run; Redis errors in the block become BrokerUnavailable."""
        with self.runs_by_lane() as runs:
            yield runs.of(run)

    @contextmanager
    def runs_by_lane(self) -> "Iterator[LaneRuns]":
        """Yield the records of all bulk runs; see `runs`."""
        with self.translate_errors():
            yield self._runs

    def offers(self) -> dict[str, Offer]:
        """Return what the workers offer, by model. Empty before the first worker was ready."""
        with self.translate_errors():
            return self._offers.offers()

    def read_statuses(self, job_ids: list[str]) -> list[JobStatus | UnreadableRecord | None]:
        """Return what the records of jobs say; see `JobRecords.read_each`.

        The images of results are read from the store as this host reaches it.
        """
        with self.translate_errors():
            answers = self.records.read_each(job_ids)
        for answer in answers:
            if isinstance(answer, JobStatus) and answer.result is not None:
                answer.result.bind(self.store_of)
        return answers

    def read_marks(self, job_ids: list[str]) -> list[Mark]:
        """Return for each job what changes with its record; see `record_marks`."""
        with self.translate_errors():
            return self.records.read_marks(job_ids)

    def cancel(self, job_id: str) -> State:
        """Cancel a job, and return its state now; see `Client.cancel`."""
        with self.translate_errors():
            return self.records.cancel(job_id)

    def list_jobs(self, state: State | None, since: float | None) -> Iterator[list[str]]:
        """Yield the ids of jobs page by page; see `LaneRecords.pages`."""
        with self.translate_errors():
            yield from self.records.pages(state=state, since=since)

    def delete(self, job_id: str) -> None:
        """Delete the images of a job that has ended, then its record; see `Client.delete`.

        If the images cannot be deleted, the record stays, so that the call can be repeated.
        """
        records = self.records.of(check_job_id(job_id))
        with self.translate_errors():
            status = records.get(job_id)
        _check_ended(job_id, status.state)
        if (store := self._store_with(status)) is not None:
            store.delete_below(job_folder(job_id))
        with self.translate_errors():
            _check_ended(job_id, records.delete_ended(job_id, self._announced_urls()))

    def _store_with(self, status: JobStatus) -> ObjectStore | None:
        """Return the store with the images of a job; None if it has none because it never ran."""
        if status.result is not None and status.result.images:
            image = status.result.images[0]
            return self.store_of(image.url.removesuffix(image.key))
        try:
            return self.store(status.request.model)
        except ConfigurationError:
            if status.deliveries:
                raise
            return None

    def store(self, model: str | None = None) -> ObjectStore:
        """Return the store of the workers that serve `model`, to which its images are uploaded.

        Args:
            model: None means the fleet's default model.

        Raises:
            ConfigurationError: its address is not known, or it cannot be opened from here.
        """
        url: str | None = self._storage_url
        if not url and (offer := self.offers().get(model or DEFAULT_MODEL)) is not None:
            url = offer.storage_url
        if not url:
            raise ConfigurationError(
                f"the store of the model {model or DEFAULT_MODEL} is not known, because no worker "
                "has announced it; set IMAGEFLEET_STORAGE_URL to the address that the workers use"
            )
        return self._open_store(url)

    def store_of(self, root: str) -> ObjectStore:
        """Return the store that holds images whose URLs begin with `root`, for reading.

        The setting `storage_url` comes first, because this host may reach the store by another
        address than the workers.
        """
        if self._storage_url:
            return self._open_store(self._storage_url)
        same = [url for url in self._announced_urls() if url.partition("?")[0] == root]
        return self._open_store(same[0] if same else root)

    def store_addresses(self) -> list[str]:
        """Return the addresses of the fleet's image stores, as workers and this host name them."""
        return [*filter(None, [self._storage_url]), *self._announced_urls()]

    def _announced_urls(self) -> list[str]:
        return [offer.storage_url for offer in self.offers().values() if offer.storage_url]

    def _open_store(self, url: str) -> ObjectStore:
        if url not in self._stores:
            folder = folder_of(url)
            if folder is not None and not folder.is_dir():  # the workers make it at their start
                named = "the store of the fleet is the folder"
                advice = "mount it, or set IMAGEFLEET_STORAGE_URL to its place here"
                if url == self._storage_url:
                    named = "IMAGEFLEET_STORAGE_URL names the folder"
                    advice = "a worker of this host makes it at its start; else mount it"
                raise ConfigurationError(f"{named} {folder}, which this host lacks; {advice}")
            self._stores[url] = open_store(url)
        return self._stores[url]

    def read_fleet(self, **options: float) -> "FleetStatus":
        """Return the status of the fleet; see `FleetReader.read`."""
        with self.translate_errors():
            return self.fleet.read(**options)

    def read_memory(self, within_s: float) -> RedisMemory | None:
        """Return the memory of Redis, or of the fullest master; None if this user may not ask."""
        with self.translate_errors():
            return read_fullest_memory(self.lanes, within_s)

    def workers(self) -> list[str]:
        """Return the names of the living workers. A killed one counts until its lease expires."""
        with self.translate_errors():
            return self.fleet.workers.alive()

    def worker_statuses(self) -> "list[WorkerStatus]":
        """Return what every worker reports of itself, also of those that are lost."""
        with self.translate_errors():
            return self.fleet.workers.statuses()

    def warn_if_no_worker(self) -> None:
        """Log a warning if no worker is alive; call it before blocking.

        It is logged once, and again only after a worker was alive in between.
        """
        try:
            alive = bool(self.workers())
        except BrokerUnavailable:
            if len(self.lanes) == 1:
                raise
            return  # the other lanes may answer
        if not alive and not self._warned_of_no_worker:
            log.warning("no worker is alive; unfinished work waits until one is ready")
        self._warned_of_no_worker = not alive

    def warn_about_server(self) -> None:
        """Log a warning, at the first call, if the settings of Redis endanger jobs."""
        if self._checked:
            return
        self._checked = True
        with suppress(Exception):  # only the jobs themselves need Redis' answers
            info, in_lane = self.redis.info(), self.settings.in_cluster
            risks = find_risks(info, in_lane=in_lane)
            for risk in filter(None, [find_fault(info, in_lane=in_lane), *risks]):
                log.warning("%s", risk if risk.startswith("Redis") else f"Redis {risk}")

    def check(self) -> None:
        """Raise BrokerUnavailable unless Redis answers."""
        with translate_errors(self._url):
            self.redis.ping()

    def close(self) -> None:
        """Close the connections to Redis."""
        self.lanes.close()


def _check_ended(job_id: str, state: State) -> None:
    """Raise InvalidRequest unless a job in this state may be deleted."""
    if state not in TERMINAL:
        limit = f"is {state}; only a job that has ended can be deleted, so cancel it first"
        raise InvalidRequest("id", job_id, limit)
