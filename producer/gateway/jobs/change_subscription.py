"""Hear which jobs of a lane change, over one connection for all of them.

Input: job ids. Output: the ids of those whose records have changed. This module reads no records.
"""

import logging
import time
from collections.abc import Set
from typing import Any, Final

from imagefleet.producer.connection.outages import RETRY_S
from imagefleet.shared.jobs.redis_keys import changes_channel
from imagefleet.shared.redis_client.lanes import Lane

_REFUSED_S: Final = 60.0
"""Seconds until a user that may not subscribe tries again: it may have got the right."""
_HEARD: Final = ("message", "subscribe", "smessage", "ssubscribe")
_MAX_UNANSWERED: Final = 500
"""Pings without an answer after which the connection is given up. One is sent with each look for
messages, 30 s after the last message."""

log = logging.getLogger(__name__)


class ChangeSubscription:
    """The subscription to the changes of the jobs that are watched. One thread uses it.

    It hears nothing while Redis is away or refuses it, and subscribes again afterwards.
    """

    def __init__(self, lane: Lane) -> None:
        self._redis: Any = lane.client  # redis-py has no types for this part
        self._namespace = lane.namespace
        self._in_slot = lane.in_cluster
        self._pubsub: Any = None
        self._jobs: dict[str, str] = {}
        """They are by the channels of their changes."""
        self._retry_at = 0.0
        self._is_broken = False

    def hear(self, job_ids: Set[str], seconds: float) -> set[str]:
        """Follow exactly these jobs. Return those that changed within `seconds`, which it takes.

        A job is also returned when its subscription begins: what changed before is not heard.
        """
        from redis import RedisError

        deadline = time.monotonic() + seconds
        try:
            if time.monotonic() >= self._retry_at:
                self._follow(job_ids)
                return self._receive(deadline)
        except RedisError as error:
            self._break_off(error)
        time.sleep(max(0.0, deadline - time.monotonic()))
        return set()

    def close(self) -> None:
        """End all subscriptions, and close the connection."""
        if self._pubsub is not None:
            self._pubsub.close()
        self._pubsub = None
        self._jobs.clear()

    def _follow(self, job_ids: Set[str]) -> None:
        pubsub = self._pubsub = self._pubsub or self._redis.pubsub()
        followed = set(self._jobs.values())
        if new := {self._channel(job_id): job_id for job_id in job_ids - followed}:
            self._jobs.update(new)
            (pubsub.ssubscribe if self._in_slot else pubsub.subscribe)(*new)
        if old := [self._channel(job_id) for job_id in followed - job_ids]:
            (pubsub.sunsubscribe if self._in_slot else pubsub.unsubscribe)(*old)
            for channel in old:
                del self._jobs[channel]

    def _channel(self, job_id: str) -> str:
        return changes_channel(self._namespace, job_id)

    def _receive(self, deadline: float) -> set[str]:
        from redis import ConnectionError as RedisConnectionError
        from redis import TimeoutError as RedisTimeoutError

        heard: set[str] = set()
        while self._jobs and (left := deadline - time.monotonic()) > 0:
            message = self._pubsub.get_message(timeout=left) or {"type": None}
            if message["type"] in _HEARD:
                if (job_id := self._jobs.get(message["channel"])) is not None:
                    heard.add(job_id)
                self._is_broken = False
            elif message["type"] == "sunsubscribe" and message["channel"] in self._jobs:
                raise RedisConnectionError("the slot of these jobs has moved to another server")
            if self._pubsub.health_check_response_counter > _MAX_UNANSWERED:
                raise RedisTimeoutError("Redis does not answer on the connection for changes")
        return heard

    def _break_off(self, error: Exception) -> None:
        """Give the connection up, and try again later."""
        from redis.exceptions import NoPermissionError

        refused = isinstance(error, NoPermissionError)
        if not self._is_broken:
            log.warning(
                "cannot hear changes of jobs (%s); %s",
                error,
                f"records are read every few seconds instead: the user of Redis needs "
                f"&{changes_channel(self._namespace, '*')} of docs/redis.md"
                if refused
                else "trying again",
            )
        self._is_broken = True
        self._retry_at = time.monotonic() + (_REFUSED_S if refused else RETRY_S)
        self.close()
