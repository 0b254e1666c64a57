"""Recognize the errors of a Redis that answers, but takes no writes for now.

Causes are too few replicas, a failing disk, no memory, a master that is a replica for a moment, or
a long script. An error of redis-py comes in. Out comes whether it is temporary, and a retry that
waits until it is over.
"""

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import redis
from redis.retry import Retry

_CODE: Final = re.compile(r"(^|: -?)(NOREPLICAS|MISCONF|MASTERDOWN|READONLY|OOM|BUSY) ")
"""The code is at the start, or behind `caused error: ` (redis-py's pipelines), `because of: `
(EXEC) or `script: 1: -` (scripts of Redis 6.2)."""
_TEMPORARY: Final = (redis.OutOfMemoryError, redis.ReadOnlyError, redis.exceptions.MasterDownError)

T = TypeVar("T")


class WritesRefused(redis.ResponseError):
    """Redis refused a write for now, with an error for which redis-py has no class of its own."""


def is_temporary(error: Exception) -> bool:
    """Return whether Redis did nothing, and may take the same command later."""
    if isinstance(error, (*_TEMPORARY, WritesRefused)):
        return True
    return isinstance(error, redis.ResponseError) and bool(_CODE.search(str(error)))


class RetryUntilWritable(Retry):
    """This retry treats temporary errors like a lost connection."""

    def call_with_retry(
        self, do: Callable[[], T], fail: Callable[..., Any], *args: Any, **options: Any
    ) -> T:
        """Call `do` until it succeeds; redis-py documents the parameters."""

        def do_and_classify() -> T:
            try:
                return do()
            except redis.ResponseError as error:
                if is_temporary(error):
                    raise WritesRefused(str(error)) from error
                raise

        return super().call_with_retry(do_and_classify, fail, *args, **options)
