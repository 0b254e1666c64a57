"""A webhook receiver that is down half of the time and records what it accepted."""

import json
import random
import time
from collections import Counter
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from typing import Final, Self

from imagefleet.shared.webhooks.signature import ID_HEADER, new_secret
from tests.support.receiver import Receiver, respond_with

_UP_OR_DOWN_S: Final = 5.0
"""Seconds of each period, up and down in turn."""
_ACCEPTED: Final = respond_with(204)
_UNAUTHORIZED: Final = respond_with(401)
_REFUSED: Final = respond_with(503)


def _hang_up(handler: BaseHTTPRequestHandler, number: int) -> None:
    handler.close_connection = True


class FlakyReceiver:
    """The receiver accepts callbacks for 5 s, refuses them for 5 s, and so on.

    `with FlakyReceiver(seed) as receiver: … receiver.url … receiver.accepted`
    """

    def __init__(self, seed: int) -> None:
        self.secret = new_secret()
        self.always_up = False
        """Whether it accepts callbacks all the time."""
        self.refused = 0
        """Requests that were refused while it was down."""
        self.unverified = 0
        """Requests without a valid signature."""
        self.cut_off = 0
        """Requests that ended early because their sender died."""
        self._accepted: list[int] = []
        self._rng = random.Random(seed)
        self._began = time.monotonic()
        self._receiver = Receiver([self.secret], self._respond)
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        return self._receiver.url

    @property
    def accepted(self) -> Counter[str]:
        """The number of 204 responses by webhook id."""
        return Counter(self._receiver.deliveries[n].headers[ID_HEADER] for n in self._accepted)

    @property
    def events(self) -> dict[str, str]:
        """The event of each accepted webhook id, as in `cat-1.succeeded`."""
        found = {}
        for delivery in (self._receiver.deliveries[n] for n in self._accepted):
            body = json.loads(delivery.body)
            event = body["type"].removeprefix("job.")
            found[delivery.headers[ID_HEADER]] = f"{body['data']['id']}.{event}"
        return found

    def __enter__(self) -> Self:
        self._stack.enter_context(self._receiver)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _respond(self, handler: BaseHTTPRequestHandler, number: int) -> None:
        delivery = self._receiver.deliveries[number - 1]
        if len(delivery.body) < int(delivery.headers.get("content-length", 0)):
            self.cut_off += 1
            _hang_up(handler, number)
        elif not delivery.verified:
            self.unverified += 1
            _UNAUTHORIZED(handler, number)
        elif self._is_up():
            self._accepted.append(number - 1)
            _ACCEPTED(handler, number)
        else:
            self.refused += 1
            self._rng.choice((_REFUSED, _hang_up))(handler, number)

    def _is_up(self) -> bool:
        periods = int((time.monotonic() - self._began) / _UP_OR_DOWN_S)
        return self.always_up or periods % 2 == 0
