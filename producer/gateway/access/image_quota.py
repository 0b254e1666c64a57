"""Count the images that each API key orders in a UTC day, for all gateways together.

They are counted in the lane that the id of the key tells.

They are charged before a job is accepted, and given back if it is refused. Equal requests at
several gateways at the same moment are one job: a mark in Redis says that its images are charged.
"""

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.redis_keys import image_charge_key, image_quota_key
from imagefleet.shared.jobs.model import parse_count
from imagefleet.shared.redis_client.lanes import Lane
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.shared.redis_client.wrong_type_keys import read_key

_DAY_S: Final = 86_400
_KEEP_S: Final = 2 * _DAY_S
"""A count outlives its day, so that gateways whose clocks differ agree on it."""
_MARK_S: Final = 900
"""Seconds for which images count as charged whose job has no record yet. A gateway that died may
have charged them, and the request is repeated."""
_NO_LIMIT: Final = 10**15


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What came of charging images to the quota of a caller."""

    allowed: bool
    """False: fewer are left than were asked for, and nothing was charged."""
    left: int | None
    """The images that are left now. None: there was nothing to charge."""
    resets_in_s: float
    """After so many seconds the whole quota is there again."""
    lane: int = 0
    """The lane where they are counted."""
    counter: str = ""
    """The Redis key where they are counted; '' if there was nothing to charge."""
    mark: str = ""
    """The Redis key that says so."""
    images: int = 0
    """So many are counted there."""
    is_ours: bool = False
    """Whether this call has charged them. False: an equal request had done so before."""


class ImageQuota:
    """This class charges the images of a day. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lanes = connection.lanes
        self._script = load_script(connection.redis, __package__, "count_images")

    def charge(self, caller: Caller, images: int, of: str) -> Charge:
        """Charge images to today's quota of `caller`, all of them or none.

        Args:
            of: the job or run that has the images. They are charged once.

        Raises:
            BrokerUnavailable: Redis does not answer, takes no writes, or refuses this user.
        """
        now = time.time()
        resets_in_s = _DAY_S - now % _DAY_S
        if caller.key_id is None or caller.images_per_day is None or not images:
            return Charge(allowed=True, left=None, resets_in_s=resets_in_s)
        lane = self._lanes.of(caller.key_id)
        charge = Charge(
            allowed=False,
            left=None,
            resets_in_s=resets_in_s,
            lane=lane.number,
            counter=_counter(lane, caller.key_id, now),
            mark=image_charge_key(lane.namespace, caller.key_id, of),
            images=images,
        )
        allowed, left, is_ours = self._count(charge, images, caller.images_per_day)
        return replace(charge, allowed=allowed, left=left, is_ours=is_ours)

    def used(self, caller: Caller) -> int | None:
        """Return how many images were charged today; None if the caller has no quota.

        Raises BrokerUnavailable.
        """
        if caller.key_id is None or caller.images_per_day is None:
            return None
        lane = self._lanes.of(caller.key_id)
        counter = _counter(lane, caller.key_id, time.time())
        with self._connection.translate_errors():
            text = read_key(lane.client, lambda pipe: pipe.get(counter))
        return parse_count(text or "0") or 0

    def confirm(self, charge: Charge) -> None:
        """Charge the images of a job that was accepted, whatever the quota, if the equal request
        that had charged them was refused meanwhile and has given them back.

        Raises BrokerUnavailable.
        """
        if charge.images and not charge.is_ours:
            self._count(charge, charge.images, _NO_LIMIT)

    def give_back(self, charge: Charge, job_id: str) -> None:
        """Give back what was charged, to the day of the charge, unless an equal request was
        accepted, whose images they are then.

        Args:
            job_id: the stored id of the job that was refused.

        Raises:
            BrokerUnavailable: Redis does not answer, takes no writes, or refuses this user.
        """
        if not charge.is_ours:
            return
        record = self._connection.records.key_in(self._lanes[charge.lane], job_id)
        if self._is_elsewhere(charge, job_id):
            return
        given_back, *_ = self._count(charge, -charge.images, 0, *record)
        # If it is accepted after the second look, `confirm` charges its images again.
        if given_back and self._is_elsewhere(charge, job_id):
            self._count(charge, charge.images, _NO_LIMIT)

    def _is_elsewhere(self, charge: Charge, job_id: str) -> bool:
        """Return whether another lane than that of the counter has the record of the job."""
        with self._connection.translate_errors():
            return self._connection.records.is_elsewhere(self._lanes[charge.lane], job_id)

    def _count(
        self, charge: Charge, images: int, quota: int, *record: str
    ) -> tuple[bool, int, bool]:
        """Return whether it was done, how many are left, and whether this call did it."""
        keys = [charge.counter, charge.mark, *record]
        args, client = [images, quota, _KEEP_S, _MARK_S], self._lanes[charge.lane].client
        with self._connection.translate_errors():
            done, left, is_ours = self._script(keys=keys, args=args, client=client)
        return bool(done), int(left), bool(is_ours)


def _counter(lane: Lane, key_id: str, now: float) -> str:
    day = datetime.fromtimestamp(now, UTC).date().isoformat()
    return image_quota_key(lane.namespace, key_id, day)
