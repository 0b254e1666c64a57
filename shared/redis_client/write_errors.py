"""Recognize the errors of a Redis that answers, but takes no writes for now.

Causes are too few replicas, a failing disk, no memory, a master that is a replica for a moment, a
long script, a cluster without a master for the slot, or a slot that is being moved. Input: an error
of redis-py. Output: whether it is temporary, what it says, and a retry that waits until it is over.
"""

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import redis
from redis.retry import Retry

_CODE: Final = re.compile(r"(^|: -?)(NOREPLICAS|MISCONF|MASTERDOWN|READONLY|OOM|BUSY|CLUSTERDOWN) ")
"""The code is at the start, or behind `caused error: ` (redis-py's pipelines), `because of: `
(EXEC) or `script: 1: -` (scripts of Redis 6.2)."""
_NOT_ALLOWED: Final = re.compile(r"NOPERM|NOAUTH|ACL failure|user executing the script")
_OF_PIPELINE: Final = " of pipeline caused error: "
"""Before it redis-py quotes the command, and so keys and values that anybody may have chosen."""
_TEMPORARY: Final = (
    redis.OutOfMemoryError,
    redis.ReadOnlyError,
    redis.exceptions.ClusterDownError,  # also MASTERDOWN
    redis.exceptions.AskError,
    redis.exceptions.TryAgainError,
)

T = TypeVar("T")


class WritesRefused(redis.ResponseError):
    """Redis refused a write for now, with an error for which redis-py has no class of its own."""


def is_temporary(error: Exception) -> bool:
    """Return whether Redis did nothing, and may take the same command later."""
    if isinstance(error, redis.exceptions.MovedError):
        return False  # this client does not follow a slot: the same command would fail again
    if isinstance(error, (*_TEMPORARY, WritesRefused)):
        return True
    return isinstance(error, redis.ResponseError) and bool(_CODE.search(str(error)))


def is_outage(error: Exception) -> bool:
    """Return whether Redis is away, takes no writes or refuses this user.

    Any other error of a command has its cause in what the command was about: one message, or one
    record.
    """
    if isinstance(error, redis.DataError):
        return False
    if isinstance(error, redis.exceptions.NoPermissionError):
        return True
    if isinstance(error, redis.ResponseError):
        reason = str(error).rpartition(_OF_PIPELINE)[2]
        return is_temporary(error) or bool(_NOT_ALLOWED.search(reason))
    return isinstance(error, redis.RedisError)


def describe_failure(error: Exception) -> str:
    """Return what a server does with a command that failed, such as "does not answer (…)"."""
    if isinstance(error, redis.AuthenticationError):
        return f"refuses the credentials: {error}"
    if isinstance(error, redis.exceptions.NoPermissionError):
        return f"does not give this user the rights of docs/redis.md: {error}"
    if isinstance(error, redis.OutOfMemoryError):
        return f"is full and took nothing: {error}"
    if is_temporary(error):
        return f"takes no writes for now and took nothing: {error}"
    if isinstance(error, redis.ResponseError):
        return f"refuses the command: {error}"
    if isinstance(error, redis.RedisError):
        return f"does not answer ({error})"
    return f"failed with {type(error).__name__}: {error}"


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
