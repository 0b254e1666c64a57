"""Messages no worker can do anything with, kept where an operator can read them."""

import json
import time
from contextlib import suppress
from typing import Final

import redis

_KEPT: Final = 10_000


class DeadLetters:
    """A list in Redis, newest first."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self._redis = client
        self._key = f"{namespace}:dead"

    def bury(self, list_key: str, message: str, reason: str) -> str | None:
        """Keep `message` and why it is dead. Returns the job id it speaks of, if it tells one."""
        letter = {"list": list_key, "message": message, "reason": reason, "at": time.time()}
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.lpush(self._key, json.dumps(letter))
            pipe.ltrim(self._key, 0, _KEPT - 1)
            pipe.execute()
        with suppress(Exception):  # it is dead because it can be anything
            job_id = json.loads(message)["headers"]["id"]
            return job_id if isinstance(job_id, str) else None
        return None
