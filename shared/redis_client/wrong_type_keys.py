"""Read keys that may hold another type than ours, because anybody may write to Redis.

Input: a pipeline. Output: its answers; None stands for a key of another type, which is named in a
warning.
"""

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline

log = logging.getLogger(__name__)

_MAX_NAMED: Final = 1_000
"""A process remembers so many keys, so that it names each of them once."""
_MAX_KEY: Final = 200
"""A warning shows so many characters of a key."""


def read_ignoring_wrong_types(pipe: "Pipeline") -> list[Any]:
    """Execute a pipeline of reads. Return None for each key that holds another type.

    Raises:
        redis.RedisError: any other error.
    """
    commands: list[Any] = list(pipe.command_stack)
    answers: list[Any] = pipe.execute(raise_on_error=False)
    for number, answer in enumerate(answers):
        if isinstance(answer, Exception):
            if not is_wrong_type(answer):
                raise answer
            arguments, _ = commands[number]
            _warn(ascii(arguments[1])[:_MAX_KEY])
            answers[number] = None
    return answers


def read_key(client: "Redis", read: "Callable[[Pipeline], object]") -> Any:
    """Return the answer to one command, which `read` adds to a pipeline. Return None if the key
    holds another type."""
    with client.pipeline(transaction=False) as pipe:
        read(pipe)
        [answer] = read_ignoring_wrong_types(pipe)
    return answer


def is_wrong_type(answer: object) -> bool:
    """Return whether an answer is Redis' error for a key that holds another type."""
    return isinstance(answer, Exception) and "WRONGTYPE" in str(answer)


@lru_cache(_MAX_NAMED)
def _warn(key: str) -> None:
    log.warning(
        "the key %s in Redis holds another type than imagefleet wrote and is ignored; delete it",
        key,
    )
