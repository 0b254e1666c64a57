"""Read what has happened in a fleet within the last hour, as far as Redis keeps when it was."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from imagefleet.producer.connection.connection import Connection
from imagefleet.shared.jobs.recent_ends import ANSWER_S
from imagefleet.shared.jobs.redis_keys import dead_letters_key, outbox_given_up_key
from imagefleet.shared.redis_client.each_lane import ask_at_once
from imagefleet.shared.redis_client.lanes import Lane
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
    """Return what has happened until now. A lane that does not answer does not count. Raises
    BrokerUnavailable."""
    lanes = connection.lanes
    asks = {lane.number: partial(_count, lane) for lane in lanes}
    with connection.translate_errors():
        counts = ask_at_once(asks, len(lanes), ANSWER_S, "its latest events do not count").values()
        ends = connection.recent_ends.counts(ENDS_WITHIN_S)
    return RecentEvents(
        dead_letters=sum(letters for letters, _ in counts),
        callbacks_given_up=sum(given_up for _, given_up in counts),
        ends=ends,
    )


def _count(lane: Lane) -> tuple[int, int]:
    """Return how many dead letters and given-up callbacks of a lane are that new."""
    now, pipe = time.time(), lane.client.pipeline(transaction=False)
    pipe.zcount(dead_letters_key(lane.namespace), now - DEAD_LETTERS_WITHIN_S, "+inf")
    pipe.zcount(outbox_given_up_key(lane.namespace), now - CALLBACKS_WITHIN_S, "+inf")
    letters, given_up = read_ignoring_wrong_types(pipe)
    return letters or 0, given_up or 0
