"""Run actions at their times, in a few threads, whatever they are."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

Action = Callable[[], None]


class Timetable:
    """Actions by the time at which they are due. Any thread may add one."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self.late_s: list[float] = []
        """How long after its time each action began: where it is long, this process is too slow."""

    def add(self, at: float, action: Action) -> None:
        """Run `action` at `at` (monotonic), or as soon as a thread is free."""
        with self._changed:
            heapq.heappush(self._due, (at, next(self._numbers), action))
            self._changed.notify()  # the thread that hands them out

    def repeat(self, begin: float, interval_s: float, action: Callable[[], object]) -> None:
        """Run `action` at `begin`, and `interval_s` after each of its ends, as a thread would."""

        def run() -> None:
            action()
            self.add(time.monotonic() + interval_s, run)

        self.add(begin, run)

    def run(self, until: float, threads: int) -> None:
        """Run the actions that are due before `until` (monotonic), and return then.

        Raises:
            BaseException: an action raised it. The others are not run any more.
        """
        errors: list[BaseException] = []

        def act(at: float, action: Action) -> None:
            self.late_s.append(time.monotonic() - at)
            try:
                action()
            except BaseException as error:
                errors.append(error)

        pool = ThreadPoolExecutor(threads)
        try:
            while not errors and (due := self._next(until)):
                pool.submit(act, *due)
        finally:
            pool.shutdown(cancel_futures=True)
        if errors:
            raise errors[0]

    def _next(self, until: float) -> tuple[float, Action] | None:
        """Wait for the next action and remove it; None once it is `until`."""
        with self._changed:
            while (now := time.monotonic()) < until:
                if self._due and self._due[0][0] <= now:
                    at, _, action = heapq.heappop(self._due)
                    return at, action
                self._changed.wait(min(self._due[0][0] if self._due else until, until) - now)
            return None
