"""Take claimed messages through Celery to attempts that have started, lane by lane.

Input: claimed messages. Output: attempts, and requests in Celery's pool. What an outage of a lane
leaves keeps its place, and holds up no other lane. This module depends on neither batches nor
devices.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from celery.worker.request import Request
from celery.worker.state import task_ready

from imagefleet.shared.errors import MessageRejected
from imagefleet.shared.jobs.celery_message import BULK_TASK_NAME
from imagefleet.shared.redis_client.write_errors import is_outage
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.jobs.attempt import Attempt
from imagefleet.worker.jobs.input_images import InputImages
from imagefleet.worker.jobs.input_permits import ReturnSchedule
from imagefleet.worker.jobs.job_lanes import JobLanes
from imagefleet.worker.jobs.receive import MessageReceiver
from imagefleet.worker.queues.claim_types import Claimed

log = logging.getLogger(__name__)

SendToPool = Callable[[Request], None]


class Intake:
    """The messages of a worker from their claims to the start of their jobs.

    Any thread may call `accept`, `settle` and `attended_tags`; one at a time the other methods.
    """

    def __init__(
        self,
        lanes: JobLanes,
        backlog: RowBacklog,
        input_images: InputImages,
        max_deliveries: int,
        on_started: Callable[[Attempt], None],
    ) -> None:
        """Take a function that is called with each attempt, once its request is in the pool."""
        self._lanes = lanes
        self._claims = lanes.claims
        self._backlog = backlog
        self._on_started = on_started
        returns = ReturnSchedule()
        self._receivers = [
            MessageReceiver(lane, self._claims.holds, input_images, returns, max_deliveries)
            for lane in lanes
        ]
        self._strategies: dict[str, Any] = {}
        self._send_to_pool: SendToPool = lambda request: None
        self._claimed: deque[tuple[Claimed, str]] = deque()  # each with the task of its queue
        self._accepted: dict[str, Claimed] = {}
        """It holds the claims of requests by tag, from their acceptance by Celery to their end."""
        self._requests: deque[Request] = deque()

    def attach(self, strategies: dict[str, Any], send_to_pool: SendToPool) -> None:
        """Set Celery's strategies, which read messages, and Celery's pool."""
        self._strategies, self._send_to_pool = strategies, send_to_pool

    def add(self, claimed: Sequence[Claimed], task: str) -> None:
        """Add claimed messages for a task."""
        self._claimed += [(each, task) for each in claimed]

    def accept(self, request: Request) -> None:
        """Keep a request that Celery received until the next batch (Celery's `on_task_request`)."""
        claimed: Claimed = request.message.claimed
        self._accepted[claimed.tag] = claimed
        if request.name == BULK_TASK_NAME:
            self._backlog.add_shard(claimed)
            self._send(request)
        else:
            self._requests.append(request)

    def settle(self, tag: str, error: BaseException | None = None) -> None:
        """Note that Celery's pool has finished with a request. If the claim is still held, Celery
        itself failed, and the message becomes a dead letter."""
        claimed, lane = self._accepted.pop(tag, None), self._lanes.of(tag)
        outcome = lane.in_flight.remove(tag)
        if claimed is None or not lane.claims.holds(tag):
            return
        reason = MessageRejected(f"Celery failed with it: {type(error).__name__}: {error}")
        if isinstance(outcome, Attempt):
            outcome.abandon(reason)
        self._backlog.remove_shard(tag)
        log.error("Celery failed with the message of claim %s", tag, exc_info=error)
        lane.starter.refuser.reject_message(claimed, reason)

    def attended_tags(self) -> set[str]:
        """Return the tags of the claims that this worker attends to."""
        return {claimed.tag for claimed, _ in list(self._claimed)} | set(self._accepted)

    def count_unstarted(self) -> int:
        """Count what an error has left, but for lanes that are paused: it must hold up no other."""
        tags = [claimed.tag for claimed, _ in self._claimed]
        tags += [request.message.claimed.tag for request in self._requests]
        return sum(not self._claims.is_paused(self._claims.number_of(tag)) for tag in tags)

    def receive(self) -> bool:
        """Let Celery receive the claimed messages. Return whether some of them were delayed.

        Raises:
            redis.RedisError: the only lane does not answer. The next call goes on.
        """
        return sum(map(self._receive, self._answering_lanes())) > 0

    def start(self) -> bool:
        """Start or refuse the attempts of requests, then send these to Celery's pool. Return
        whether there were any. Raises what `receive` raises."""
        return sum(map(self._start, self._answering_lanes())) > 0

    def _answering_lanes(self) -> list[int]:
        lanes = range(len(self._receivers))
        return [number for number in lanes if not self._claims.is_paused(number)]

    def _receive(self, number: int) -> bool:
        delayed, receiver = False, self._receivers[number]
        own = [each for each in self._claimed if self._claims.number_of(each[0].tag) == number]
        with self._claims.pausing(number):
            for claimed, task in own:
                delayed |= receiver.receive(claimed, task, self._strategies[task])
                if self._claims.holds(claimed.tag) and claimed.tag not in self._accepted:
                    receiver.reject(claimed, MessageRejected("Celery did not accept it"))
                self._claimed.remove((claimed, task))
        return delayed

    def _start(self, number: int) -> bool:
        lane = self._lanes[number]
        tagged = [(each, each.message.claimed.tag) for each in self._requests]
        requests = [each for each, tag in tagged if self._claims.number_of(tag) == number]
        with self._claims.pausing(number):
            outcomes = lane.starter.start(requests) if requests else []
            for request, outcome in zip(requests, outcomes, strict=True):
                tag = request.message.claimed.tag
                if lane.claims.holds(tag):
                    if outcome is not None:
                        lane.in_flight.add(tag, outcome)
                    self._send(request)
                    if isinstance(outcome, Attempt) and lane.claims.holds(tag):
                        self._on_started(outcome)
                if not lane.claims.holds(tag):
                    self._accepted.pop(tag, None)
                    task_ready(request)  # otherwise Celery remembers it for ever
                self._requests.remove(request)
        return bool(requests)

    def _send(self, request: Request) -> None:
        """Send a request to Celery's pool. If Celery fails, the message becomes a dead letter."""
        try:
            self._send_to_pool(request)
        except Exception as error:
            if is_outage(error):
                raise
            self.settle(request.message.claimed.tag, error)
