"""A server process: `python -m tests.chaos.bucket SEED`. S3 with checked signatures, and in front
of it a door that does one put in ten wrong.

Prints its addresses as one JSON line, and for each line of its input another one: how many faults
of which kind there were. Ends with its input.
"""

import json
import random
import select
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler
from typing import Final

from tests.chaos.processes import PUTS
from tests.support.s3 import (
    BUCKET,
    FaultyS3,
    Misdeed,
    accept,
    carry,
    error,
    hang_up,
    reply,
    signed_s3,
)

_SILENCE_S: Final = 30.0
"""Longer than the store waits for an answer."""
_WEIGHTS: Final = {
    "500": 4,
    "hung up": 2,
    "timed out": 1,
    "done, reported 500": 2,
    "done, hung up": 1,
}
"""Percent of all puts; ten together."""


def say_nothing(door: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
    """Until the client hangs up."""
    select.select([door.connection], [], [], _SILENCE_S)
    door.close_connection = True


class Whims:
    """Decides put by put. Safe from many threads: the counts are only read at the end."""

    def __init__(self, upstream: str, seed: int) -> None:
        self._upstream = upstream
        self._rng = random.Random(seed)
        self.counts: Counter[str] = Counter()

    def misdeed(self, door: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        whim = self._whim() if door.command == "PUT" else None
        if whim is not None and not whim.startswith("done"):
            self._refusals[whim](door, body, number)
            return
        status, text = carry(self._upstream, door, body)
        if whim == "done, hung up":
            hang_up(door, body, number)
        elif whim == "done, reported 500":
            error(500, "InternalError")(door, body, number)
        else:
            reply(door, status, text)

    _refusals: Final[dict[str, Misdeed]] = {
        "500": error(500, "InternalError"),
        "hung up": hang_up,
        "timed out": say_nothing,
    }

    def _whim(self) -> str | None:
        self.counts[PUTS] += 1
        drawn = self._rng.uniform(0, 100)
        for whim, percent in _WEIGHTS.items():
            drawn -= percent
            if drawn < 0:
                self.counts[whim] += 1
                return whim
        return None


def main(seed: str) -> None:
    with signed_s3() as server, FaultyS3(accept) as door:
        whims = Whims(server.endpoint_url, int(seed))
        door.misdeed = whims.misdeed
        addresses = {
            "url": f"s3://{BUCKET}?endpoint_url={door.endpoint_url}",
            "honest_url": f"s3://{BUCKET}?endpoint_url={server.endpoint_url}",
            "environment": server.credentials.environment(),
        }
        print(json.dumps(addresses), flush=True)
        for _ in sys.stdin:
            print(json.dumps(whims.counts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
