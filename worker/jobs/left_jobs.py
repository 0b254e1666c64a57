"""Put away the messages of jobs that one worker leaves to others.

A message at the head of its queue is open to the others only while this worker claims nothing. So
it claims nothing for a second, at most once in five. In between, the messages of such jobs are
delayed, so that it makes other jobs meanwhile. The module depends on neither records nor devices.
"""

import time
from typing import Final

import redis

from imagefleet.worker.queues.claims import Claims

_PAUSE_S: Final = 1.0
"""A worker claims nothing for so long if a claim brought only jobs that it leaves to others."""
_PAUSE_EVERY_S: Final = 5.0


class LeftJobs:
    """The jobs that one worker leaves to others. One thread calls it."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._next_pause = float("-inf")
        self._at_head = False
        """It says whether the current claim put a message back to the head of its queue."""

    def leave(self, tag: str, record: str, request_sha1: str) -> None:
        """Release a message: to the head of its queue, or until this worker may pause again.

        Args:
            record: key of the job's record.
            request_sha1: SHA-1 of the request of the message. Empty: not known.
        """
        wait_s = self._next_pause - time.monotonic()
        if wait_s > 0:
            try:
                self._claims.delay_queued(tag, wait_s, record, request_sha1)
                return
            except redis.RedisError:  # the message may be delayed; then nothing is requeued
                pass
        self._claims.requeue(tag)
        self._at_head = True

    def end_claim(self, *, brought_others: bool) -> None:
        """Pause after a claim that brought only jobs to leave, if the latest pause is long ago."""
        now = time.monotonic()
        if self._at_head and not brought_others and now >= self._next_pause:
            self._claims.pause(_PAUSE_S)
            self._next_pause = now + _PAUSE_EVERY_S
        self._at_head = False
