"""Read keys that may hold another type than ours, because anybody may write to Redis.

Input: a pipeline. Output: its answers; None stands for a key of another type.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.client import Pipeline


def read_ignoring_wrong_types(pipe: "Pipeline") -> list[Any]:
    """Execute a pipeline of reads. Return None for each key that holds another type.

    Raises:
        redis.RedisError: any other error.
    """
    from redis import ResponseError

    answers: list[Any] = pipe.execute(raise_on_error=False)
    for number, answer in enumerate(answers):
        if isinstance(answer, Exception):
            if not (isinstance(answer, ResponseError) and "WRONGTYPE" in str(answer)):
                raise answer
            answers[number] = None
    return answers
