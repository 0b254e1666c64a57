"""Moves of shards from one state to another: how `move.lua` is called, for one and for many.

Goes in: which record, what it may leave, what it enters. Comes out: whether it did. Which moves
there are, and who may make them, `Runs` tells.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from shared.bulk.keys import run_keys
from shared.bulk.layout import shard_name
from shared.bulk.messages import message_id
from shared.bulk.records import ShardMove, read_move
from shared.errors import LeaseLost
from shared.jobs import State
from shared.queues import claims_key, leases_key
from shared.scripts import script

if TYPE_CHECKING:
    from redis import Redis

T = TypeVar("T")

_CHUNK: Final = 500


class Moves:
    """Of the shards of one namespace."""

    def __init__(self, client: "Redis", namespace: str, retention_s: int) -> None:
        self._redis = client
        self._namespace = namespace
        self._retention_s = retention_s
        self._leases = leases_key(namespace)
        self._claims_prefix = claims_key(namespace, "")
        self._move = script(client, __package__, "move")

    def by(
        self,
        state: State,
        run: str,
        shard: int,
        attempt: str,
        worker: str,
        *,
        counts: str = "",
        made: tuple[int, Mapping[str, int]] | None = None,
    ) -> ShardMove:
        """A move that only the attempt which has the shard may make. Raises LeaseLost."""
        move = read_move(
            self.enter(
                state,
                run,
                shard,
                leave=(State.RUNNING,),
                holder=attempt,
                attempt=attempt if state is State.RUNNING else "",
                worker=worker,
                counts=counts,
                made=made,
            )
        )
        if not move.happened:
            raise LeaseLost(f"shard {shard_name(shard)} of run {run} is another attempt's now")
        return move

    def enter_all(
        self,
        state: State,
        run: str,
        leave: Iterable[str],
        shards: Iterable[tuple[int, dict[str, Any]]],
    ) -> list[int]:
        """Move many shards, each with what else `enter` takes. Which did move."""
        moved = []
        for chunk in _chunks(shards):
            with self._redis.pipeline(transaction=False) as pipe:
                for shard, more in chunk:
                    self.enter(state, run, shard, leave=leave, client=pipe, **more)
                answers = pipe.execute()
            moved += [shard for (shard, _), move in zip(chunk, answers, strict=True) if move[0]]
        return moved

    def enter(
        self,
        state: State,
        run: str,
        shard: int,
        *,
        leave: Iterable[str],
        holder: str = "",
        attempt: str = "",
        worker: str = "",
        counts: str = "",
        made: tuple[int, Mapping[str, int]] | None = None,
        claim: tuple[str, str] = ("", ""),
        message: tuple[str, str] = ("", ""),
        client: Any = None,
    ) -> Any:
        """Move one shard, if move.lua finds that it may.

        Args:
            leave: states it may leave.
            holder: attempt that must have it.
            attempt, worker: who has it then.
            counts: `done|failed`, in samples; empty keeps what is there.
            made: samples, and failed samples by error code; instead of `counts`.
            claim: claims hash and tag that must stand.
            message: list and message, sent with the move.
            client: a pipeline, which then has the answer.
        """
        reasons = ""
        if made is not None:
            counts, reasons = f"{made[0]}|{sum(made[1].values())}", json.dumps(dict(made[1]))
        return self._move(
            keys=[*run_keys(self._namespace, run), claim[0], message[0], self._leases],
            args=[
                shard,
                holder,
                f",{','.join(leave)},",
                state.value,
                attempt,
                worker,
                counts,
                claim[1],
                message[1],
                self._retention_s,
                reasons,
                self._claims_prefix,
                message_id(run, shard),
            ],
            client=client,
        )


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """What goes to the server in one round trip."""
    source = iter(items)
    while chunk := list(islice(source, _CHUNK)):
        yield chunk
