"""Moves of shards from one state to another: how `move.lua` is called, for one and for many.

Goes in: which record, what it may leave, what it enters. Comes out: whether it did. Which moves
there are, and who may make them, `RunRecords` tells.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final, Self, TypeVar

from imagefleet.shared.bulk.file_layout import shard_name
from imagefleet.shared.bulk.messages import message_id
from imagefleet.shared.bulk.records import ShardTransition, parse_transition
from imagefleet.shared.bulk.redis_keys import run_keys
from imagefleet.shared.errors import LeaseLost
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import claims_key, leases_key
from imagefleet.shared.redis_client.scripts import call_many, load_script

if TYPE_CHECKING:
    from redis import Redis

T = TypeVar("T")

_CHUNK: Final = 500


@dataclass(frozen=True, kw_only=True)
class ShardChange:
    """What a shard's record becomes, and on what terms."""

    to_state: State
    from_states: tuple[str, ...] = ()
    """States it may leave."""
    holder: str = ""
    """Attempt that must have it; empty asks for none."""
    attempt: str = ""
    worker: str = ""
    """Who has it then."""
    counts: str = ""
    """`done|failed`, in samples; empty keeps what is there."""
    reasons: str = ""
    """Failed samples by error code, as JSON; empty keeps what is there."""
    claim: tuple[str, str] = ("", "")
    """Claims hash and tag that must stand."""
    message: tuple[str, str] = ("", "")
    """List and message, sent with the move."""

    def with_counts(self, done: int, reasons: Mapping[str, int]) -> Self:
        """And so many samples are made, so many failed by error code."""
        counts = f"{done}|{sum(reasons.values())}"
        return replace(self, counts=counts, reasons=json.dumps(dict(reasons)))


class ShardTransitions:
    """Of the shards of one namespace."""

    def __init__(self, client: "Redis", namespace: str, retention_s: int) -> None:
        self._redis = client
        self._namespace = namespace
        self._retention_s = retention_s
        self._leases = leases_key(namespace)
        self._claims_prefix = claims_key(namespace, "")
        self._script = load_script(client, __package__, "transition")

    def apply_as_holder(
        self, run: str, shard: int, attempt: str, move: ShardChange
    ) -> ShardTransition:
        """A move that only the attempt which has the shard may make. Raises LeaseLost."""
        held = replace(move, from_states=(State.RUNNING,), holder=attempt)
        made = self.apply(run, shard, held)
        if not made.happened:
            raise LeaseLost(f"shard {shard_name(shard)} of run {run} is another attempt's now")
        return made

    def apply(self, run: str, shard: int, change: ShardChange) -> ShardTransition:
        """Move one shard, if move.lua finds that it may."""
        keys, args = self._script_call(run, shard, change)
        return parse_transition(self._script(keys=keys, args=args))

    def apply_all(self, run: str, changes: Iterable[tuple[int, ShardChange]]) -> list[int]:
        """Move many shards. Which did move."""
        moved = []
        for chunk in _chunks(changes):
            calls = (self._script_call(run, shard, change) for shard, change in chunk)
            answers = call_many(self._script, self._redis, calls)
            moved += [shard for (shard, _), move in zip(chunk, answers, strict=True) if move[0]]
        return moved

    def _script_call(
        self, run: str, shard: int, change: ShardChange
    ) -> tuple[list[str], list[str | int]]:
        """The keys and arguments of move.lua."""
        list_key, message = change.message
        claims, tag = change.claim
        keys = [*run_keys(self._namespace, run), claims, list_key, self._leases]
        return keys, [
            *(shard, change.holder, f",{','.join(change.from_states)},"),
            *(change.to_state.value, change.attempt, change.worker),
            *(change.counts, tag, message, self._retention_s, change.reasons),
            *(self._claims_prefix, message_id(run, shard)),
        ]


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """What goes to the server in one round trip."""
    source = iter(items)
    while chunk := list(islice(source, _CHUNK)):
        yield chunk
