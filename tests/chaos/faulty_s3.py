"""`python -m tests.chaos.faulty_s3 SEED`: an S3 server behind a proxy that fails one put in ten.

The server checks signatures. The process prints its addresses as one line of JSON. For each line of
its standard input it prints the number of faults by kind. It ends when its standard input ends.
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
    Fault,
    FaultyS3,
    accept,
    error,
    forward,
    hang_up,
    reply,
    signed_s3,
)

_HANG_S: Final = 30.0
"""Seconds without a response; the store's client times out sooner."""
_WEIGHTS: Final = {
    "500": 4,
    "hung up": 2,
    "timed out": 1,
    "done, reported 500": 2,
    "done, hung up": 1,
}
"""The share of each fault in all puts, in percent. They sum to ten."""


def never_answer(handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
    """Send no response until the client closes the connection."""
    select.select([handler.connection], [], [], _HANG_S)
    handler.close_connection = True


class PutFaults:
    """The faults of the proxy: some puts fail, everything else passes.

    Handlers call it from many threads without a lock, since the counts are read only at the end.
    """

    def __init__(self, upstream: str, seed: int) -> None:
        self._upstream = upstream
        self._rng = random.Random(seed)
        self.counts: Counter[str] = Counter()

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        """Draw a fault for a put, and answer the request."""
        fault = self._draw_fault() if handler.command == "PUT" else None
        if fault is not None and not fault.startswith("done"):
            self._failures[fault](handler, body, number)
            return
        status, text = forward(self._upstream, handler, body)
        if fault == "done, hung up":
            hang_up(handler, body, number)
        elif fault == "done, reported 500":
            error(500, "InternalError")(handler, body, number)
        else:
            reply(handler, status, text)

    _failures: Final[dict[str, Fault]] = {
        "500": error(500, "InternalError"),
        "hung up": hang_up,
        "timed out": never_answer,
    }

    def _draw_fault(self) -> str | None:
        self.counts[PUTS] += 1
        number = self._rng.uniform(0, 100)
        for fault, percent in _WEIGHTS.items():
            number -= percent
            if number < 0:
                self.counts[fault] += 1
                return fault
        return None


def main(seed: str) -> None:
    with signed_s3() as server, FaultyS3(accept) as proxy:
        faults = PutFaults(server.endpoint_url, int(seed))
        proxy.fault = faults.answer
        addresses = {
            "url": f"s3://{BUCKET}?endpoint_url={proxy.endpoint_url}",
            "direct_url": f"s3://{BUCKET}?endpoint_url={server.endpoint_url}",
            "environment": server.credentials.environment(),
        }
        print(json.dumps(addresses), flush=True)
        for _ in sys.stdin:
            print(json.dumps(faults.counts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
