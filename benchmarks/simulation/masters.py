"""Simulate a fleet of any size on servers that each do one thing at a time.

Input: what each action of a host takes the servers (`service_times.py`), and how many hosts there
are. Output: images a second, and how long claims take. A server works as Redis does: it takes what
has come since it was last free, and answers when the last of it is done and the append-only file is
synchronised, once. Time is simulated, so the load of this machine changes nothing. The network
takes no time here.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from benchmarks.simulation.service_times import ServiceTimes
from benchmarks.simulation.worker import BATCH_S, CAPACITY, PREFETCH_S, STORE_S
from imagefleet.worker.jobs.progress import cancel_check_interval_s

_WARM_UP_BATCHES: Final = 2
_MEASURED_BATCHES: Final = 3
IMAGES_PER_S: Final = CAPACITY / BATCH_S
"""Of a host whose devices never wait."""

_WRITES: Final = {"claim": 2, "record": 1, "end": 1, "upkeep 0": 1}
"""How many requests of an action write; upkeep 0 is a heartbeat."""

Then = Callable[[float], object]


@dataclass(frozen=True, kw_only=True)
class _Request:
    cpu_s: float
    writes: bool
    then: Then


class _Server:
    """One server, which has a share of a core."""

    def __init__(self, fleet: "_Fleet") -> None:
        self._fleet = fleet
        self._waiting: list[_Request] = []
        self._works = False
        self.busy_s = 0.0
        """CPU time within the measured time."""

    def ask(self, request: _Request, now: float) -> None:
        self._waiting.append(request)
        if not self._works:
            self._work(now)

    def _work(self, now: float) -> None:
        """Do all that waits, and what comes meanwhile afterwards."""
        taken, self._waiting = self._waiting, []
        self._works = bool(taken)
        if not taken:
            return
        syncs = any(request.writes for request in taken)
        cpu_s = sum(request.cpu_s for request in taken) + syncs * self._fleet.times.sync_s
        if self._fleet.is_measured(now):
            self.busy_s += cpu_s

        def answer(done: float) -> None:
            for request in taken:
                request.then(done)
            self._work(done)

        self._fleet.at(now + cpu_s / self._fleet.share, answer)


class _Fleet:
    """Servers, hosts, and what happens next."""

    def __init__(self, times: ServiceTimes, hosts: int, share: float, seed: int) -> None:
        self.times = times
        self.share = share
        self._chance = random.Random(seed)
        self._next: list[tuple[float, int, Then]] = []
        self._numbers = itertools.count()
        self.hosts = hosts
        self.servers = [_Server(self) for _ in times.samples["claim"][0]]
        self.begin_s = _WARM_UP_BATCHES * BATCH_S
        self.end_s = self.begin_s + _MEASURED_BATCHES * BATCH_S
        self.images = 0
        self.claims_s: list[float] = []

    def at(self, time_s: float, then: Then) -> None:
        heapq.heappush(self._next, (time_s, next(self._numbers), then))

    def run(self) -> None:
        """Let the hosts work until all is measured."""
        for _ in range(self.hosts):
            _Host(self).begin(self._chance.uniform(0, BATCH_S))
        while self._next and self._next[0][0] < self.end_s:
            now, _, then = heapq.heappop(self._next)
            then(now)

    def is_measured(self, now: float) -> bool:
        return self.begin_s <= now < self.end_s

    def uniform(self, low: float, high: float) -> float:
        return self._chance.uniform(low, high)

    def act(self, now: float, kind: str, then: Then) -> None:
        """Let the servers do an action that was measured, one server after the other."""
        visits = self._chance.choice(self.times.samples[kind])
        order = sorted(range(len(visits)), key=visits.__getitem__, reverse=True)
        requests = [(number, visits[number]) for number in order if visits[number] > 0.0]
        if kind == "claim" and requests:  # it is claimed, then started
            number, cpu_s = requests[0]
            requests[:1] = [(number, cpu_s / 2)] * 2
        self._ask(requests, _WRITES.get(kind.partition(" of ")[0], 0), then, now)

    def _ask(self, requests: list[tuple[int, float]], writes: int, then: Then, now: float) -> None:
        """Ask one server after the other. The first so many requests write."""
        if not requests:
            then(now)
            return
        (number, cpu_s), *others = requests
        go_on = partial(self._ask, others, writes - 1, then)
        self.servers[number].ask(_Request(cpu_s=cpu_s, writes=writes > 0, then=go_on), now)


class _Host:
    """A host whose devices are never slow."""

    def __init__(self, fleet: _Fleet) -> None:
        self._fleet = fleet
        self._free_at: float | None = None
        self._claimed_at: float | None = None

    def begin(self, at: float) -> None:
        fleet = self._fleet
        fleet.at(at, self._claim)
        fleet.at(at, self._end_of_devices)
        for kind, interval_s in fleet.times.intervals_s.items():
            fleet.at(at + fleet.uniform(0, interval_s), partial(self._keep_up, kind, interval_s))

    def _keep_up(self, kind: str, interval_s: float, now: float) -> None:
        fleet, again = self._fleet, partial(self._keep_up, kind, interval_s)
        fleet.act(now, kind, lambda done: fleet.at(done + interval_s, again))

    def _claim(self, now: float) -> None:
        def claimed(done: float) -> None:
            if self._fleet.is_measured(now):
                self._fleet.claims_s.append(done - now)
            self._claimed_at = done
            self._begin_batch()

        self._fleet.act(now, "claim", claimed)

    def _end_of_devices(self, now: float) -> None:
        self._free_at = now
        self._begin_batch()

    def _begin_batch(self) -> None:
        """Begin a batch if the devices are free and a batch is claimed."""
        if self._free_at is None or self._claimed_at is None:
            return
        began, fleet = max(self._free_at, self._claimed_at), self._fleet
        self._free_at = self._claimed_at = None
        ends = began + BATCH_S
        every = cancel_check_interval_s(fleet.hosts)
        reports = [
            (began + number * every, "check" if number % 2 else "record")
            for number in range(int(BATCH_S / every) + 1)
        ]
        fleet.at(began, partial(self._report, reports[::-1], ends))
        fleet.at(ends - PREFETCH_S, self._claim)
        fleet.at(ends, self._end_of_devices)
        fleet.at(ends + STORE_S[1], self._end_jobs)

    def _report(self, reports: list[tuple[float, str]], ends: float, now: float) -> None:
        _, kind = reports.pop()

        def go_on(done: float) -> None:
            if reports and (then := max(done, reports[-1][0])) < ends:
                self._fleet.at(then, partial(self._report, reports, ends))

        self._fleet.act(now, kind, go_on)

    def _end_jobs(self, now: float) -> None:
        def ended(done: float) -> None:
            if self._fleet.is_measured(done):
                self._fleet.images += CAPACITY

        self._fleet.act(now, "end", ended)


def simulate(times: ServiceTimes, hosts: int, share: float, seed: int = 0) -> dict[str, Any]:
    """Simulate a fleet whose servers have each this share of a core."""
    fleet = _Fleet(times, hosts, share, seed)
    fleet.run()
    seconds = fleet.end_s - fleet.begin_s
    claims = sorted(fleet.claims_s) or [float("nan")]
    used = [server.busy_s / share / seconds for server in fleet.servers]
    return {
        "images_per_s": fleet.images / seconds,
        "of_linear": fleet.images / seconds / (hosts * IMAGES_PER_S),
        "claim_ms_p50": 1e3 * claims[len(claims) // 2],
        "claim_ms_p99": 1e3 * claims[int(0.99 * len(claims))],
        "redis_ms_per_image": 1e3 * sum(each.busy_s for each in fleet.servers) / fleet.images,
        "fullest_server": max(used),
        "emptiest_server": min(used),
    }
