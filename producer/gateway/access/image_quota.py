"""Count the images that each API key orders in a UTC day, for all gateways together.

They are charged before a job is accepted, and given back if it is refused.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.redis_keys import image_quota_key
from imagefleet.shared.jobs.model import parse_count
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.shared.redis_client.wrong_type_keys import read_key

_DAY_S: Final = 86_400
_KEEP_S: Final = 2 * _DAY_S
"""A count outlives its day, so that gateways whose clocks differ agree on it."""


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What came of charging images to the quota of a caller."""

    allowed: bool
    """False: fewer are left than were asked for, and nothing was charged."""
    left: int | None
    """The images that are left now. None: the caller has no quota."""
    resets_in_s: float
    """After so many seconds the whole quota is there again."""
    counter: str | None = None
    """The Redis key where they were counted. None: they were not."""
    images: int = 0
    """So many were counted there."""


class ImageQuota:
    """This class charges the images of a day. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._namespace = connection.settings.namespace
        self._script = load_script(connection.redis, __package__, "count_images")

    def charge(self, caller: Caller, images: int) -> Charge:
        """Charge images to today's quota of `caller`, all of them or none.

        If Redis' answer was lost and the command was repeated, they count twice.

        Raises:
            BrokerUnavailable: Redis does not answer, takes no writes, or refuses this user.
        """
        now = time.time()
        resets_in_s = _DAY_S - now % _DAY_S
        if caller.key_id is None or caller.images_per_day is None:
            return Charge(allowed=True, left=None, resets_in_s=resets_in_s)
        counter = self._counter(caller.key_id, now)
        allowed, left = self._count(counter, images, caller.images_per_day)
        if not allowed:
            return Charge(allowed=False, left=left, resets_in_s=resets_in_s)
        return Charge(
            allowed=True, left=left, resets_in_s=resets_in_s, counter=counter, images=images
        )

    def used(self, caller: Caller) -> int | None:
        """Return how many images were charged today; None if the caller has no quota.

        Raises BrokerUnavailable.
        """
        if caller.key_id is None or caller.images_per_day is None:
            return None
        counter = self._counter(caller.key_id, time.time())
        with self._connection.translate_errors():
            text = read_key(self._connection.redis, lambda pipe: pipe.get(counter))
        return parse_count(text or "0") or 0

    def give_back(self, charge: Charge) -> None:
        """Give back what was charged, to the day of the charge. Call it once for a charge.

        Raises:
            BrokerUnavailable: Redis does not answer, takes no writes, or refuses this user.
        """
        if charge.counter is not None:
            self._count(charge.counter, -charge.images, 0)

    def _counter(self, key_id: str, now: float) -> str:
        day = datetime.fromtimestamp(now, UTC).date().isoformat()
        return image_quota_key(self._namespace, key_id, day)

    def _count(self, counter: str, images: int, quota: int) -> tuple[bool, int]:
        with self._connection.translate_errors():
            done, left = self._script(keys=[counter], args=[images, quota, _KEEP_S])
        return bool(done), int(left)
