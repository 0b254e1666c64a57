"""A receiver of callbacks that is down half of the time, and remembers what it accepted."""

import random
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Final, Self

from imagefleet.shared.webhooks.signature import ID_HEADER, new_secret
from tests.support.receiver import Receiver, answers

_SPELL_S: Final = 5.0
"""How long it is up, or down, at a time."""
_ACCEPTED: Final = answers(204)
_UNAUTHORIZED: Final = answers(401)
_REFUSED: Final = answers(503)


def _hang_up(door: BaseHTTPRequestHandler, number: int) -> None:
    door.close_connection = True


class Mailbox:
    """`with Mailbox(seed) as mailbox: … mailbox.url … mailbox.accepted`"""

    def __init__(self, seed: int) -> None:
        self.secret = new_secret()
        self.calm = False
        self.refused = 0
        """While it was down."""
        self.forged = 0
        """Without a good signature."""
        self.cut_off = 0
        """By the death of whoever sent them."""
        self._accepted: list[int] = []
        self._rng = random.Random(seed)
        self._began = time.monotonic()
        self._receiver = Receiver([self.secret], self._manner)

    @property
    def url(self) -> str:
        return self._receiver.url

    @property
    def accepted(self) -> Counter[str]:
        """How often each webhook id was answered with 204."""
        return Counter(self._receiver.deliveries[n].headers[ID_HEADER] for n in self._accepted)

    def __enter__(self) -> Self:
        self._receiver.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._receiver.__exit__(kind, error, trace)

    def _manner(self, door: BaseHTTPRequestHandler, number: int) -> None:
        delivery = self._receiver.deliveries[number - 1]
        if len(delivery.body) < int(delivery.headers.get("content-length", 0)):
            self.cut_off += 1
            _hang_up(door, number)
        elif not delivery.verified:
            self.forged += 1
            _UNAUTHORIZED(door, number)
        elif self._up():
            self._accepted.append(number - 1)
            _ACCEPTED(door, number)
        else:
            self.refused += 1
            self._rng.choice((_REFUSED, _hang_up))(door, number)

    def _up(self) -> bool:
        spells = int((time.monotonic() - self._began) / _SPELL_S)
        return self.calm or spells % 2 == 0
