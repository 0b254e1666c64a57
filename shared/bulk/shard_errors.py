"""Say why whole shards of a run failed, or were left by a worker that could not make them.

Input: the error of a worker. Output: the text that `transition.lua` stores, and what a run's status
says of it. This module does not use Redis.
"""

import re
from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.jobs.model import Count, Model, Time
from imagefleet.shared.text.printable import mask_credentials, printable

_STORED: Final = re.compile(r"([0-9]{1,12})\|([a-z_]{1,40})\|([^|]*)\|(.*)", re.DOTALL)
_MAX_MESSAGE: Final = 500


class ShardError(Model):
    """Why shards of a run failed, or were left by a worker that could not make them. It stays until
    the shards get on."""

    code: str
    message: str
    worker: str
    """It is the worker that met it last."""
    at: Time
    """It is the time when it was met last, in Unix seconds of the Redis server's clock."""
    shards: Count
    """It counts the shards with this error, up to 100."""


def pack_shard_error(worker: str, error: ImagefleetError) -> str:
    """Return what `transition.lua` stores of the error of a shard, after the time."""
    message = printable(mask_credentials(str(error)), _MAX_MESSAGE)
    return f"{error.code}|{worker.replace('|', ' ')}|{message}"


def errors_by_code(texts: Iterable[str]) -> tuple[ShardError, ...]:
    """Return the latest error of each code, without damaged ones, the latest first."""
    errors = sorted(filter(None, map(_parse, texts)), key=attrgetter("at"))
    shards = Counter(each.code for each in errors)
    latest = {each.code: each for each in errors}
    counted = (each.model_copy(update={"shards": shards[code]}) for code, each in latest.items())
    return tuple(sorted(counted, key=attrgetter("at"), reverse=True))


def _parse(text: str) -> ShardError | None:
    fields = _STORED.fullmatch(text)
    if fields is None:
        return None
    at, code, worker, message = fields.groups()
    shown = printable(message, _MAX_MESSAGE)
    return ShardError(code=code, message=shown, worker=printable(worker), at=float(at), shards=1)
