"""Read something of many job records in one round trip, also where a key holds something else.

Input: keys and a command of a pipeline. Output: the answers, or the errors of single keys.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from imagefleet.shared.redis_client.wrong_type_keys import is_wrong_type

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline


def read_records(
    client: "Redis", keys: Sequence[str], read: "Callable[[Pipeline, str], object]"
) -> list[Any]:
    """Call `read` for each key in one pipeline, and return the answers.

    The answer for a key that holds no record but something else is the error.
    """
    from redis import ResponseError

    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            read(pipe, key)
        try:
            return pipe.execute()
        except ResponseError as error:
            if not is_wrong_type(error):
                raise
        for key in keys:
            read(pipe, key)
        return pipe.execute(raise_on_error=False)
