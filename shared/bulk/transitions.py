"""Change the state of one or many shards with `transition.lua`.

Input: a shard and the wanted change. Output: whether the change happened. `RunRecords` decides
which changes exist and who may make them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final, Self, TypeVar

from imagefleet.shared.bulk.file_layout import shard_name
from imagefleet.shared.bulk.records import ShardTransition, parse_transition
from imagefleet.shared.bulk.redis_keys import outbox_keys, run_keys
from imagefleet.shared.bulk.shard_errors import pack_shard_error
from imagefleet.shared.bulk.shard_message import message_id
from imagefleet.shared.errors import ImagefleetError, LeaseLost
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.redis_keys import claims_key, leases_key
from imagefleet.shared.redis_client.scripts import call_many, load_script

if TYPE_CHECKING:
    from redis import Redis

T = TypeVar("T")

_CHANGES_PER_ROUND_TRIP: Final = 500


@dataclass(frozen=True, kw_only=True)
class ShardChange:
    """A change of a shard's record, and the conditions under which it happens."""

    to_state: State
    from_states: tuple[str, ...] = ()
    """States that the shard may have before."""
    holder: str = ""
    """Attempt that must hold the shard before; empty requires none."""
    attempt: str = ""
    """Attempt that holds the shard afterwards."""
    worker: str = ""
    counts: str = ""
    """`done|failed`, in samples; empty keeps the stored counts."""
    reasons: str = ""
    """Failed samples by error code, as JSON; empty keeps the stored ones."""
    error: str = ""
    """Why the shard failed or was requeued, as `code|worker|message`; empty keeps the stored error
    until the shard gets on."""
    claim: tuple[str, str] = ("", "")
    """Claims hash and tag that must exist; empty requires none."""
    message: tuple[str, str] = ("", "")
    """Redis list, and message to push to it with the change; empty sends none."""

    def with_counts(self, done: int, reasons: Mapping[str, int]) -> Self:
        """Return this change with `done` samples, and failed samples by error code."""
        counts = f"{done}|{sum(reasons.values())}"
        return replace(self, counts=counts, reasons=json.dumps(dict(reasons)))

    def with_error(self, worker: str, error: ImagefleetError | None) -> Self:
        """Return this change with the error that `worker` met, if there is one."""
        return self if error is None else replace(self, error=pack_shard_error(worker, error))


class ShardTransitions:
    """Changes the records of the shards of one namespace."""

    def __init__(self, client: "Redis", namespace: str, retention_s: int) -> None:
        self._redis = client
        self._namespace = namespace
        self._retention_s = retention_s
        self._leases = leases_key(namespace)
        self._outbox = outbox_keys(namespace)
        self._claims_prefix = claims_key(namespace, "")
        self._script = load_script(
            client, __package__, "shard_record", "run_events", "transition", outbox=True
        )

    def apply_as_holder(
        self, run: str, shard: int, attempt: str, change: ShardChange
    ) -> ShardTransition:
        """Change a shard that `attempt` holds. Raise LeaseLost if it does not hold it."""
        change = replace(change, from_states=(State.RUNNING,), holder=attempt)
        transition = self.apply(run, shard, change)
        if not transition.happened:
            raise LeaseLost(f"this attempt no longer holds shard {shard_name(shard)} of run {run}")
        return transition

    def apply(self, run: str, shard: int, change: ShardChange) -> ShardTransition:
        """Change one shard if its conditions hold."""
        keys, args = self._script_call(run, shard, change)
        return parse_transition(self._script(keys=keys, args=args))

    def apply_all(self, run: str, changes: Iterable[tuple[int, ShardChange]]) -> list[int]:
        """Change many shards. Return the numbers of those whose conditions held."""
        changed = []
        for part in _parts(changes):
            calls = (self._script_call(run, shard, change) for shard, change in part)
            answers = call_many(self._script, self._redis, calls)
            changed += [
                shard for (shard, _), answer in zip(part, answers, strict=True) if answer[0]
            ]
        return changed

    def _script_call(
        self, run: str, shard: int, change: ShardChange
    ) -> tuple[list[str], list[str | int]]:
        """Return the keys and arguments of transition.lua."""
        list_key, message = change.message
        claims, tag = change.claim
        of_run = run_keys(self._namespace, run)
        keys = [
            *of_run,
            # A cluster takes no key of another slot, and the name '' has one: that of the run does.
            *(claims or of_run.run, list_key or of_run.run, self._leases, *self._outbox),
        ]
        return keys, [
            *(shard, change.holder, f",{','.join(change.from_states)},"),
            *(change.to_state.value, change.attempt, change.worker),
            *(change.counts, tag, message, self._retention_s, change.reasons),
            *(self._claims_prefix, message_id(run, shard), change.error),
        ]


def _parts(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of the items that go to the server in one round trip."""
    source = iter(items)
    while part := list(islice(source, _CHANGES_PER_ROUND_TRIP)):
        yield part
