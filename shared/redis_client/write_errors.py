"""A Redis that answers, but takes no writes for now: too few replicas, a failing disk, no memory, a
replica for a moment, busy with a long script.

Goes in: an error of redis-py. Comes out: whether it will pass, and a retry that waits until then.
"""

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import redis
from redis.retry import Retry

_CODE: Final = re.compile(r"(^|: -?)(NOREPLICAS|MISCONF|MASTERDOWN|READONLY|OOM|BUSY) ")
"""At the start; or behind `caused error: ` (redis-py's pipelines), `because of: ` (EXEC) and
`script: 1: -` (scripts of Redis 6.2)."""
_PASSING: Final = (redis.OutOfMemoryError, redis.ReadOnlyError, redis.exceptions.MasterDownError)

T = TypeVar("T")


class WritesRefused(redis.ResponseError):
    """What redis-py has no class of its own for."""


def is_temporary(error: Exception) -> bool:
    """Whether the same command is taken later, with nothing done to it."""
    if isinstance(error, (*_PASSING, WritesRefused)):
        return True
    return isinstance(error, redis.ResponseError) and bool(_CODE.search(str(error)))


class RetryUntilWritable(Retry):
    """Tries again what will pass, as if the connection had been lost."""

    def call_with_retry(
        self, do: Callable[[], T], fail: Callable[..., Any], *args: Any, **options: Any
    ) -> T:
        def sorted_out() -> T:
            try:
                return do()
            except redis.ResponseError as error:
                if is_temporary(error):
                    raise WritesRefused(str(error)) from error
                raise

        return super().call_with_retry(sorted_out, fail, *args, **options)
