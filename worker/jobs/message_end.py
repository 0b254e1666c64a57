"""End the message of a job together with its record: one write for Redis in place of three.

A script records the success, stores the result for Celery and releases the claim, all or nothing
of it. Celery then has nothing left to store and nothing to acknowledge. If the script did not do
it, Celery does both later, as for any other task.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.jobs.transitions import Acknowledgement, TransitionResult
from imagefleet.worker.queues.claims import Claims


@dataclass(frozen=True, kw_only=True)
class CeleryResult:
    """The result of a task as Celery stores it."""

    key: str
    text: str
    keep_s: int
    """Celery keeps the result for this many seconds; 0 means for ever."""


@dataclass(kw_only=True)
class MessageEnd:
    """The end of one claimed message of which Celery does nothing more once its result is stored:
    it has no chain, no callback and no chord."""

    claims: Claims
    tag: str
    store: Callable[[dict[str, Any]], CeleryResult] | None
    """Returns what Celery would store. None: it stores no result."""
    happened: bool = False

    def acknowledgement(self, result: JobResult) -> Acknowledgement:
        """Return what the script needs to end the message."""
        stored = None if self.store is None else self.store(result.model_dump(mode="json"))
        return Acknowledgement(
            claims=self.claims.key,
            deliveries=self.claims.deliveries,
            tag=self.tag,
            result_key=stored.key if stored else "",
            result=stored.text if stored else "",
            keep_result_s=stored.keep_s if stored else 0,
        )

    def note(self, transition: TransitionResult) -> None:
        """Forget the claim if the transition has released it."""
        if transition.acknowledged:
            self.claims.forget([self.tag])
            self.happened = True
