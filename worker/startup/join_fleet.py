"""Let a worker join its fleet, unless it differs from the workers that are there.

Two workers that start at the same time both publish what they have before they look. So at least
one of them sees the other: it yields to a worker that has joined, and to one that is joining and
comes first by name; for one that comes later it waits until that has decided. So of two that
differ never both join.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Self

import redis

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.membership import (
    differences_between,
    folder_warning,
    members,
    refusal,
    shared_folders,
)
from imagefleet.shared.jobs.worker_status import Member, WorkerRegistry, WorkerState, WorkerStatus
from imagefleet.shared.redis_client.lanes import Lane, Lanes
from imagefleet.shared.storage import place_of
from imagefleet.shared.text.printable import mask_url
from imagefleet.worker.engine.contract.interface import ModelInfo
from imagefleet.worker.queues.lease import Lease
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.served_queues import holds_default_jobs
from imagefleet.worker.startup.status_reporter import StatusReporter
from imagefleet.worker.startup.stores import Stores

log = logging.getLogger(__name__)

_POLL_S: Final = 0.1


def member_of(
    settings: WorkerSettings, stores: Stores, info: ModelInfo, queues: Sequence[str] | None
) -> Member:
    """Return what a worker says of itself for the comparison.

    Args:
        queues: those that the worker was told to serve. None: all of its model.
    """
    is_default = settings.serves_default and holds_default_jobs(queues, settings.namespace)
    return Member(
        serves_default=is_default,
        digest=info.digest,
        store=mask_url(place_of(settings.storage_url, stores.images)),
        may_differ=tuple(settings.may_differ),
    )


class FleetJoin:
    """It decides at the start of one worker whether that may join its fleet."""

    def __init__(
        self,
        registry: WorkerRegistry,
        lease: Lease,
        reporter: StatusReporter,
        namespace: str,
        is_away: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take a function that returns whether the first lane does not answer, and the worker
        starts nevertheless."""
        self._registry = registry
        self._lease = lease
        self._reporter = reporter
        self._namespace = namespace
        self._is_away = is_away
        self.is_late = False
        """Whether this worker takes work and was not compared with the others yet."""

    @classmethod
    def build(
        cls,
        retrying: Lanes,
        no_retry: Lanes,
        settings: WorkerSettings,
        worker: str,
        reporter: StatusReporter,
    ) -> Self:
        """Build it for the first lane, with a client that waits for Redis: the start has nothing
        else to do, unless there are other lanes."""
        lane = retrying.first
        lease = Lease(lane.client, lane.namespace, worker, settings.lease_s)
        registry = WorkerRegistry(lane.client, lane.namespace)
        is_away = partial(_is_away, no_retry.first) if len(no_retry) > 1 else lambda: False
        return cls(registry, lease, reporter, settings.namespace, is_away)

    def join(self) -> None:
        """Acquire the lease as a member of the fleet. If the first of several lanes is away, join
        without that: `compare_if_late` looks at the others later.

        Raises:
            ConfigurationError: this worker differs from a worker of the fleet. It names what
                differs, and nothing was claimed.
        """
        self.is_late = self._is_away()
        if self.is_late:
            log.warning("lane 0 does not answer; this worker takes the jobs of the other lanes")
            self._reporter.joined = True
            return
        ours = self._reporter.current()
        self._check(ours, members(self._others(ours)))  # a stranger is not even seen
        try:
            self._lease.acquire(self._reporter.status())
            while not self._decide():
                time.sleep(_POLL_S)
            self._warn()
        except BaseException:
            self.leave()
            raise

    def join_again_if_expired(self) -> None:
        """Join once more if the lease may have expired since `join`: nobody saw this worker then,
        so one that differs may have joined. Raises what `join` raises."""
        if self._lease.may_have_expired():
            self._reporter.joined = False
            self.join()

    def compare_if_late(self, drain: Callable[[], None]) -> None:
        """Compare this worker with the others, if it joined without that, and drain it if it
        differs. Call it once the first lane answers."""
        if not self.is_late:
            return
        self.is_late = False
        ours = self._reporter.current()
        if sentence := refusal(ours, members(self._others(ours)), self._namespace):
            log.error("this worker drains, because it may not join the fleet: %s", sentence)
            drain()

    def leave(self) -> None:
        """Release the lease, so that this worker keeps no other out."""
        with suppress(redis.RedisError):
            self._lease.release_all()

    def _decide(self) -> bool:
        """Return whether this worker has joined; False if it must wait for another that is joining.

        Raises:
            ConfigurationError: it may not join.
        """
        ours = self._reporter.current()
        others = self._others(ours)
        joining = [each for each in others if each.state is WorkerState.JOINING]
        earlier = [each for each in joining if each.worker < ours.worker]
        self._check(ours, [*members(others), *earlier])
        if refusal(ours, joining, self._namespace) is None:
            self._reporter.joined = True
            if self._lease.renew(self._reporter.status()):
                return True
            self._reporter.joined = False  # the lease expired: others have not seen this worker
        if not self._lease.renew(self._reporter.status()):
            self._lease.acquire(self._reporter.status())
        return False

    def _check(self, ours: WorkerStatus, others: Sequence[WorkerStatus]) -> None:
        if sentence := refusal(ours, others, self._namespace):
            raise ConfigurationError(sentence)

    def _others(self, ours: WorkerStatus) -> list[WorkerStatus]:
        return [each for each in self._registry.statuses() if each.worker != ours.worker]

    def _warn(self) -> None:
        """Log what is allowed and may surprise."""
        ours = self._reporter.current()
        others = members(self._others(ours))
        allowed = {
            each.trait: each for other in others for each in differences_between(ours, other)
        }
        for difference in allowed.values():
            log.warning("this host differs from others, as is allowed: %s", difference)
        for store, hosts in shared_folders([ours, *others]).items():
            if ours.member is not None and store == ours.member.store:
                log.warning("%s", folder_warning(store, hosts))


def _is_away(lane: Lane) -> bool:
    """Return whether a lane does not answer."""
    try:
        lane.client.ping()
    except redis.RedisError:
        return True
    return False
