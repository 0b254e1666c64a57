"""Send calls of one script that several threads make at about the same time in one round trip.

Input: the keys and arguments of each call. Output: its own answer. Each call is as atomic as alone.
Redis reads, executes and syncs the calls of a group together: eight take it a quarter of the time
that they take one by one.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis import Redis
    from redis.commands.core import Script


@dataclass(frozen=True, kw_only=True)
class Gather:
    """How long a call waits for others that share its round trip."""

    expected: Callable[[], int]
    """Returns how many threads are about to make a call, this one included."""
    max_wait_s: float


@dataclass(kw_only=True, eq=False)
class _Call:
    keys: Sequence[str]
    args: Sequence[Any]
    answers: list[Any] = field(default_factory=list)
    """One answer, or none if the call must be made alone."""
    done: threading.Event = field(default_factory=threading.Event)


class GroupedCalls:
    """Groups the calls of a script that is idempotent. Safe to share between threads.

    The first thread of a group waits for the others and sends all calls. No thread waits for a
    thread that has not called yet for longer than `max_wait_s`.
    """

    def __init__(self, script: "Script", client: "Redis") -> None:
        self._script = script
        self._client = client
        self._waiting: list[_Call] = []
        self._changed = threading.Condition()

    def call(self, keys: Sequence[str], args: Sequence[Any], gather: Gather) -> Any:
        """Call the script, and return its answer.

        Raises:
            redis.RedisError: of this call, as if it had been made alone.
        """
        mine = _Call(keys=keys, args=args)
        if group := self._join(mine, gather):
            self._send(group)
        mine.done.wait()
        return mine.answers[0] if mine.answers else self._script(keys=keys, args=args)

    def _join(self, mine: _Call, gather: Gather) -> list[_Call]:
        """Add a call to the group that waits. Return the group to the thread that must send it."""
        with self._changed:
            self._waiting.append(mine)
            if len(self._waiting) > 1:
                self._changed.notify_all()
                return []
            self._changed.wait_for(
                lambda: len(self._waiting) >= gather.expected(), gather.max_wait_s
            )
            group, self._waiting = self._waiting, []
            return group

    def _send(self, group: Sequence[_Call]) -> None:
        """Send a group. A call that fails gets no answer, so its own thread makes it alone."""
        try:
            if len(group) > 1:
                self._send_together(group)
        finally:
            for call in group:
                call.done.set()

    def _send_together(self, group: Sequence[_Call]) -> None:
        from redis.exceptions import RedisError

        with self._client.pipeline(transaction=False) as pipe:
            for call in group:
                pipe.evalsha(self._script.sha, len(call.keys), *call.keys, *call.args)
            try:
                answers = pipe.execute(raise_on_error=False)
            except RedisError:
                return
        for call, answer in zip(group, answers, strict=True):
            if not isinstance(answer, Exception):
                call.answers.append(answer)
