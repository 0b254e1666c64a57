"""Measure the CPU time that Redis needs for what a host asks, one action after the other.

Input: the masters of a fleet, on which many hosts have leases. Output: for each kind of action the
seconds of CPU of each server, of some hundred actions of real workers without devices, and what a
synchronisation of the append-only file takes. Requests that come together share one, so it is
measured apart.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

import redis

from benchmarks.simulation.counted import Counted
from benchmarks.simulation.fleet import NAMESPACE, make_hosts, submit
from benchmarks.simulation.servers import Servers
from benchmarks.simulation.timetable import Timetable
from benchmarks.simulation.worker import (
    BATCH_S,
    CAPACITY,
    LEASE_S,
    PREFETCH_S,
    STEPS,
    STORE_S,
    SimulatedWorker,
)
from imagefleet.shared.jobs.redis_keys import lease_lengths_key, leases_key
from imagefleet.shared.redis_client.connection import connect_lanes
from imagefleet.worker.queues.lease_keeper import RENEWALS_PER_LEASE

T = TypeVar("T")

HOSTS: Final = 4
"""Hosts whose actions are measured, in turn."""
_FIRST_BATCHES: Final = 8
"""Batches that are not measured: the servers load their scripts."""
_IDLE_S: Final = 3.0
_SYNCS: Final = 400
_STRETCH: Final = 1_000.0
"""Leases are so much longer, and none expires while actions are measured."""

Visits = tuple[float, ...]
"""Seconds of CPU of each server, in the order of the servers."""


@dataclass(frozen=True, kw_only=True)
class ServiceTimes:
    """What each action of a host takes the servers, by kind: `claim`, `record`, `check`, `end`, and
    `upkeep 0 …` for what a worker does again and again in each lane."""

    samples: dict[str, list[Visits]] = field(default_factory=dict)
    intervals_s: dict[str, float] = field(default_factory=dict)
    """Seconds between two actions of upkeep."""
    sync_s: float
    """CPU time of one synchronisation of the append-only file."""

    def mean_s(self, kind: str) -> float:
        """Return the mean CPU time of an action without synchronisations, of all servers."""
        samples = self.samples[kind]
        return sum(map(sum, samples)) / len(samples)

    def per_batch_s(self) -> float:
        """Return the CPU time of the jobs of a batch, without upkeep."""
        return sum(self.mean_s(kind) for kind in ("claim", "record", "check", "end"))

    @classmethod
    def lowest(cls, rounds: Sequence[Self]) -> Self:
        """Return each action as in the round in which its mean was lowest: other programs on the
        machine only make it longer."""

        def quietest(kind: str) -> list[Visits]:
            return min(rounds, key=lambda each: each.mean_s(kind)).samples[kind]

        return cls(
            samples={kind: quietest(kind) for kind in rounds[0].samples},
            intervals_s=rounds[0].intervals_s,
            sync_s=min(each.sync_s for each in rounds),
        )


class _Meter:
    """Attributes the CPU time of the servers to actions, without what idle servers take."""

    def __init__(self, pids: Sequence[int], times: ServiceTimes) -> None:
        self._pids = pids
        self._times = times
        before, began = self._read(), time.monotonic()
        time.sleep(_IDLE_S)
        spent = time.monotonic() - began
        self._idle = [(now - then) / spent for now, then in zip(self._read(), before, strict=True)]
        self.is_on = False

    def _read(self) -> list[float]:
        return [_cpu_s(pid) for pid in self._pids]

    def run(self, kind: str, action: Callable[[], T]) -> T:
        """Run an action, and note what it takes."""
        before, began = self._read(), time.monotonic()
        answer = action()
        spent = time.monotonic() - began
        used = zip(self._read(), before, self._idle, strict=True)
        if self.is_on:
            visits = tuple(now - then - idle * spent for now, then, idle in used)
            self._times.samples.setdefault(kind, []).append(visits)
        return answer


def measure(servers: Servers, fleet: int, batches: int) -> ServiceTimes:
    """Measure the actions of some batches in a fleet of so many hosts."""
    submit(servers.url, (batches + _FIRST_BATCHES + HOSTS) * CAPACITY)
    _add_leases(servers.url, fleet - HOSTS)
    sync_s = _measure_sync(servers)
    names = [f"host-{number}" for number in range(HOSTS)]
    hosts = make_hosts(servers.url, names, Timetable(), Counted(), _STRETCH)
    for host in hosts:
        host.join()
    times = ServiceTimes(sync_s=sync_s)
    meter = _Meter(servers.pids, times)
    turns = itertools.cycle(hosts)
    with ThreadPoolExecutor(CAPACITY) as threads:
        for number in range(batches + _FIRST_BATCHES):
            meter.is_on = number >= _FIRST_BATCHES
            host = next(turns)
            _measure_batch(host, meter, threads)
            _measure_upkeep(host, meter, times, fleet, number)
    times.samples.update({kind: _no_less_than_0(raw) for kind, raw in times.samples.items()})
    return times


def _no_less_than_0(samples: Sequence[Visits]) -> list[Visits]:
    """Return visits none of which takes less than no time, with the same means for each server.

    A server does its own work ten times a second, so that it takes now less than it does idle on
    average, now more.
    """
    columns = []
    for column in zip(*samples, strict=True):
        positive = [max(0.0, cpu_s) for cpu_s in column]
        scale = max(0.0, sum(column)) / (sum(positive) or 1.0)
        columns.append([cpu_s * scale for cpu_s in positive])
    return list(zip(*columns, strict=True))


def _measure_sync(servers: Servers) -> float:
    """Return what a synchronisation takes, and let the servers make none from now on."""
    client, pid = servers.clients[0], servers.pids[0]
    key = next(key for key in ("{a}", *map(str, range(10_000))) if _is_here(client, key))
    spent = []
    for policy in ("always", "no"):
        client.config_set("appendfsync", policy)
        before = _cpu_s(pid)
        for _ in range(_SYNCS):
            client.set(key, "x" * 500)
        spent.append(_cpu_s(pid) - before)
    for each in servers.clients:
        each.config_set("appendfsync", "no")
    return max(0.0, (spent[0] - spent[1]) / _SYNCS)


def _is_here(client: redis.Redis, key: str) -> bool:
    try:
        client.get(key)
    except redis.ResponseError:  # MOVED
        return False
    return True


def _cpu_s(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | 2)  # see cpu_share.py


def _measure_batch(host: SimulatedWorker, meter: _Meter, threads: ThreadPoolExecutor) -> None:
    for lane in host.lanes:  # the pauses after claims that found nothing go on while a batch runs
        paused_until = lane.jobs.claims._claim._paused_until
        paused_until.update({queues: at - BATCH_S for queues, at in paused_until.items()})
    batch = meter.run("claim", host.claim_batch)
    assert len(batch) == CAPACITY, "the jobs ran out"
    meter.run("record", lambda: host.report_steps(batch, STEPS // 2, 0.0, 0.0))
    meter.run("check", lambda: host.report_steps(batch, STEPS // 2, 0.0, 1e9))
    attempts = host.deliver(batch)
    # The ends of a batch share round trips, as those of a worker do.
    meter.run("end", lambda: list(threads.map(host.finish, attempts)))


def _measure_upkeep(
    host: SimulatedWorker, meter: _Meter, times: ServiceTimes, fleet: int, number: int
) -> None:
    """Do all upkeep of one lane."""
    at = number // HOSTS % len(host.lanes)
    host.lanes[at].jobs.claims.lease.end_rest(time.monotonic())
    for action, (seconds, work) in enumerate(host.upkeep(host.lanes[at], host.keepers[at], fleet)):
        kind = f"upkeep {action} of lane {at}"
        meter.run(kind, work)
        times.intervals_s[kind] = _renewal_s(at, len(host.lanes)) if action == 0 else seconds


def _renewal_s(lane: int, lanes: int) -> float:
    """Return the mean seconds between renewals of a lease, of a busy host in a large fleet.

    Its batches come from one lane after the other. Each heartbeat renews the lease while it holds
    a batch of the lane, and so do two more. Then the lease rests, but not that of the first lane.
    """
    heartbeat_s = LEASE_S / RENEWALS_PER_LEASE
    held_s = PREFETCH_S + BATCH_S + STORE_S[1]
    return heartbeat_s if lane == 0 else lanes * BATCH_S / (held_s / heartbeat_s + 2)


def _add_leases(url: str, hosts: int) -> None:
    """Let the scripts see as many leases as the fleet has hosts."""
    lanes = connect_lanes(url, NAMESPACE)
    for lane in lanes:
        length_s = LEASE_S * _STRETCH
        expiry = time.time() + length_s
        names = [f"other-{number}" for number in range(hosts)]
        with lane.client.pipeline(transaction=False) as pipe:
            for at in range(0, hosts, 1000):
                part = names[at : at + 1000]
                pipe.zadd(leases_key(lane.namespace), dict.fromkeys(part, expiry))
                pipe.hset(
                    lease_lengths_key(lane.namespace),
                    mapping=dict.fromkeys(part, length_s),
                )
            pipe.execute()
    lanes.close()
