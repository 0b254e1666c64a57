"""A receiver of callbacks that is down half of the time, and remembers what it accepted."""

import random
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Final, Self

from shared.webhooks import ID_HEADER, new_secret
from tests.support.receiver import Receiver, answers

_SPELL_S: Final = 5.0
"""How long it is up, or down, at a time."""
_ACCEPT: Final = answers(204)
_REFUSE: Final = answers(503)


class Mailbox:
    """`with Mailbox(seed) as mailbox: … mailbox.url … mailbox.accepted`"""

    def __init__(self, seed: int) -> None:
        self.secret = new_secret()
        self.calm = False
        self.refused = 0
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

    @property
    def forged(self) -> int:
        """Requests without a good signature."""
        return sum(not delivery.verified for delivery in self._receiver.deliveries)

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
        if self._up():
            self._accepted.append(number - 1)
            _ACCEPT(door, number)
            return
        self.refused += 1
        if self._rng.random() < 0.5:
            _REFUSE(door, number)
        else:
            door.close_connection = True

    def _up(self) -> bool:
        spells = int((time.monotonic() - self._began) / _SPELL_S)
        return self.calm or spells % 2 == 0
