"""Tell the events of a prediction from its record, as Replicate's clients read them, and as ours.

    Replicate's   logs (how far it is), output (one address each), error, done
    ours          queued, started, step, preview, uploaded, done, stopping; all data are JSON

The Python client of Replicate fails at names that it does not know, so there are two streams.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from imagefleet.producer.gateway.predictions.event_place import EventPlace
from imagefleet.producer.gateway.problems import Problem, stopping
from imagefleet.producer.gateway.web.events import text_event
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.prediction import iso_time, logs_of
from imagefleet.shared.jobs.status import JobStatus

ShowStatus = Callable[[JobStatus], Mapping[str, Any]]
"""Returns the prediction of a status."""
_DONE: Final[Mapping[State, Mapping[str, str]]] = {
    State.SUCCEEDED: {},
    State.FAILED: {"reason": "error"},
    State.CANCELLED: {"reason": "canceled"},
}


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event says this."""

    place: EventPlace
    name: str
    data: str

    def __str__(self) -> str:
        return text_event(self.name, self.data, str(self.place))


TellEvents = Callable[[JobStatus, ShowStatus], Iterator[Event]]
"""Yields all events that a status tells, in the order of their places."""


class PredictionEvents:
    """The events of one prediction as one client reads them."""

    def __init__(
        self, show: ShowStatus, tell: TellEvents, last: EventPlace, last_event_name: str
    ) -> None:
        """
        Args:
            last: the client has the events up to this place.
            last_event_name: of the event that says why the stream ends before the prediction.
        """
        self._show, self._tell = show, tell
        self._last = last
        self._last_event_name = last_event_name

    async def follow(self, statuses: AsyncIterator[JobStatus]) -> AsyncGenerator[str]:
        """Yield the events until the job has ended. Raises Problem if the gateway ends before, and
        what the statuses raise."""
        status = None
        async for status in statuses:
            for event in self._tell(status, self._show):
                if event.place > self._last:
                    self._last = event.place
                    yield str(event)
        if status is None or not status.done:
            raise stopping()

    def last_event(self, problem: Problem) -> str:
        """Return the event that says why the stream ends. Another gateway goes on after its id."""
        return text_event(self._last_event_name, problem.message, str(self._last))


def tell_theirs(status: JobStatus, show: ShowStatus) -> Iterator[Event]:
    """Yield the events that Replicate's clients know."""
    if logs := logs_of(status):
        place = EventPlace(status.deliveries, status.step)
        yield Event(place=place, name="logs", data=logs.rstrip("\n"))
    if not status.done:
        return
    prediction = show(status)
    number = 0
    for number, address in enumerate(prediction["output"] or (), start=1):
        yield Event(place=EventPlace.ended(number), name="output", data=address)
    if status.state is State.FAILED:
        message = prediction["error"] or "the prediction failed"
        yield Event(place=EventPlace.ended(number + 1), name="error", data=message)
    done = json.dumps(_DONE[status.state])
    yield Event(place=EventPlace.ended(number + 2), name="done", data=done)


def tell_ours(
    status: JobStatus, show: ShowStatus, queue_length: int | None = None
) -> Iterator[Event]:
    """Yield everything that a record says of the way of a job.

    Args:
        queue_length: how many jobs waited in its queue when the stream began; None: not known.
    """
    deliveries = status.deliveries
    if status.state is State.QUEUED:
        data: dict[str, Any] = {"retries": status.retries, "retry_at": iso_time(status.retry_at)}
        if queue_length is not None and not deliveries:
            data["jobs_in_queue"] = queue_length
        yield _ours(EventPlace.queued(deliveries), "queued", data)
    if status.started_at is not None:
        started = {"attempt": deliveries, "started_at": iso_time(status.started_at)}
        yield _ours(EventPlace(deliveries, 0), "started", started)
    if status.step:
        step = {"step": status.step, "steps": status.steps}
        yield _ours(EventPlace(deliveries, status.step), "step", step)
    if status.preview:
        place = EventPlace(deliveries, status.step, 1)
        yield _ours(place, "preview", {"step": status.step, "image": status.preview})
    if not status.done:
        return
    prediction = show(status)
    number = 0
    images = status.result.images if status.result is not None else ()
    for image, address in zip(images, prediction["output"] or (), strict=False):
        number += 1
        uploaded = {"index": image.index, "seed": image.seed, "url": address}
        yield _ours(EventPlace.ended(number), "uploaded", uploaded)
    yield _ours(EventPlace.ended(number + 1), "done", prediction)


def _ours(place: EventPlace, name: str, data: Mapping[str, Any]) -> Event:
    return Event(place=place, name=name, data=json.dumps(data, separators=(",", ":")))
