"""Run causes beside each other in one thread, and note when Prometheus fires their alerts."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.alerts.causes import Cause
from tests.alerts.fleet import SCRAPE_S, Fleet, Targets
from tests.support.prometheus import PrometheusServer
from tests.support.redis import TcpServer

_SETUP_S: Final = 240.0
"""The most seconds until a cause has happened."""
_FIRES_WITHIN_S: Final = 240.0
"""The most seconds until its alerts have fired after that."""
_TICK_S: Final = 0.2


@dataclass
class Outcome:
    """What came of a cause."""

    cause: Cause
    fired: dict[str, float]
    """Seconds from the cause until each alert fired, also those that were not expected."""
    problems: list[str] = field(default_factory=list)


class Scenario:
    """A cause that runs in its own fleet, in turns with others: call `turn` until `done`."""

    def __init__(self, cause: Cause, fleet: Fleet) -> None:
        self.fleet = fleet
        self.outcome = Outcome(cause, fleet.fired)
        self.done = False
        self._steps = cause.provoke(fleet)
        self._condition: Callable[[], object] = lambda: fleet.number("imagefleet_redis_up") == 1
        self._started_at = time.monotonic()

    def turn(self, firing: Sequence[dict[str, str]]) -> None:
        """Note alerts, and go one step on if its condition is true."""
        try:
            self.fleet.watch()
            self._note(firing)
            if not self.done and self._condition():
                self._condition = next(self._steps, lambda: False)
            self._check_time()
        except Exception as error:  # one cause that breaks must not end the others
            self.outcome.problems.append(f"{type(error).__name__}: {error}"[:600])
            self.done = True

    def _note(self, firing: Sequence[dict[str, str]]) -> None:
        name, caused_at = self.fleet.name, self.fleet.caused_at
        for labels in firing:
            alert = labels["alertname"]
            if (
                name in (labels.get("fleet"), labels.get("scenario"))
                and alert not in self.fleet.fired
            ):
                self.fleet.fired[alert] = time.monotonic() - (caused_at or time.monotonic())
                if caused_at is None and alert in self.outcome.cause.alerts:
                    self.outcome.problems.append(f"{alert} fired before the cause")
        expected = self.outcome.cause.alerts
        self.done = bool(expected) and all(alert in self.fleet.fired for alert in expected)

    def _check_time(self) -> None:
        caused_at, expected = self.fleet.caused_at, self.outcome.cause.alerts
        limit_s = _SETUP_S if caused_at is None else _FIRES_WITHIN_S
        if (
            expected
            and not self.done
            and time.monotonic() > (caused_at or self._started_at) + limit_s
        ):
            missing = [alert for alert in expected if alert not in self.fleet.fired]
            when = "it could not be brought about" if caused_at is None else "did not fire"
            self.outcome.problems.append(f"{', '.join(missing)}: {when} within {limit_s:g} s")
            self.done = True


class Stage:
    """Where causes run: a Prometheus, and a Redis that most of them share."""

    def __init__(
        self, folder: Path, redis_url: str, targets: Targets, prometheus: PrometheusServer
    ) -> None:
        self._folder, self._redis_url = folder, redis_url
        self._targets, self._prometheus = targets, prometheus

    def run(
        self,
        causes: Sequence[Cause],
        beside: Cause,
        at_once: int,
        on_end: Callable[[Outcome], None],
    ) -> Outcome:
        """Run all causes, and `beside` them a fleet in which nothing goes wrong.

        Args:
            at_once: How many causes run at the same time.
            on_end: Gets the outcome of each cause when it has ended.

        Returns:
            What came of `beside`.
        """
        waiting = list(causes)
        running: list[tuple[Scenario, ExitStack]] = []
        with ExitStack() as healthy_stack:
            healthy = self._start(beside, healthy_stack)
            while waiting or running:
                while waiting and len(running) < at_once:
                    stack = ExitStack()
                    running.append((self._start(waiting.pop(0), stack), stack))
                firing = self._prometheus.firing()
                for scenario in (healthy, *(each for each, _ in running)):
                    scenario.turn(firing)
                for scenario, stack in [each for each in running if each[0].done]:
                    running.remove((scenario, stack))
                    stack.close()
                    on_end(scenario.outcome)
                time.sleep(_TICK_S)
            time.sleep(4 * SCRAPE_S)
            healthy.turn(self._prometheus.firing())
        return healthy.outcome

    def _start(self, cause: Cause, stack: ExitStack) -> Scenario:
        folder = self._folder / cause.name
        server = (
            self._redis_url
            if cause.redis is None
            else TcpServer(self._folder / f"{cause.name}-redis", *cause.redis)
        )
        fleet = Fleet(
            cause.name,
            folder,
            server,
            self._targets,
            self._prometheus,
            exporter_interval_s=cause.exporter_interval_s,
        )
        return Scenario(cause, stack.enter_context(fleet))
