"""Read what has happened in a fleet within the last hour, as far as Redis keeps when it was."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from imagefleet.producer.connection.connection import Connection
from imagefleet.shared.jobs.redis_keys import dead_letters_key, outbox_given_up_key
from imagefleet.shared.redis_client.wrong_type_keys import read_ignoring_wrong_types

DEAD_LETTERS_WITHIN_S: Final = 900
CALLBACKS_WITHIN_S: Final = 3_600
ENDS_WITHIN_S: Final = 1_800


@dataclass(frozen=True, kw_only=True)
class RecentEvents:
    """These things have happened lately."""

    dead_letters: int = 0
    """Messages that were given up within 15 minutes, and are kept."""
    callbacks_given_up: int = 0
    """Callbacks that were given up within an hour, and are kept."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """It counts the jobs that ended within half an hour by state, failed ones as `failed:code`."""


def read_recent_events(connection: Connection) -> RecentEvents:
    """Return what has happened until now. Raises BrokerUnavailable."""
    now, dead_letters, given_up = time.time(), 0, 0
    with connection.translate_errors():
        for lane in connection.lanes:
            pipe: Any = lane.client.pipeline(transaction=False)
            pipe.zcount(dead_letters_key(lane.namespace), now - DEAD_LETTERS_WITHIN_S, "+inf")
            pipe.zcount(outbox_given_up_key(lane.namespace), now - CALLBACKS_WITHIN_S, "+inf")
            counts = [count or 0 for count in read_ignoring_wrong_types(pipe)]
            dead_letters, given_up = dead_letters + counts[0], given_up + counts[1]
        ends = connection.recent_ends.counts(ENDS_WITHIN_S)
    return RecentEvents(dead_letters=dead_letters, callbacks_given_up=given_up, ends=ends)
