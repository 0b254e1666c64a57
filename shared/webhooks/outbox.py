"""The outbox keeps pending callbacks in Redis, so that they survive every process of the fleet.

    <namespace>:outbox            sorted set: id by due time (Unix seconds, Redis's clock)
    <namespace>:outbox:messages   hash: id to `OutboxMessage` as JSON
    <namespace>:outbox:given-up   sorted set: id by the time it was given up; its message is kept
    <namespace>:outbox:answered   sorted set: receiver by the time of its latest prompt answer
    <namespace>:outbox:gone:<url> exists while a receiver that answered 410 is disabled
    <namespace>:outbox:log:<job>  list: the job's latest delivery attempts, newest first

A script that changes a job's state queues the callback for it in the same step, with the function
`add_callback` of `outbox.lua`.
"""

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from imagefleet.shared.errors import MessageRejected, UnknownJob
from imagefleet.shared.jobs.redis_keys import (
    outbox_given_up_key,
    outbox_key,
    outbox_messages_key,
)
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.shared.redis_client.wrong_type_keys import read_ignoring_wrong_types, read_key
from imagefleet.shared.webhooks.outbox_message import (
    CallbackEntry,
    CallbackState,
    DeliveryAttempt,
    DeliveryOutcome,
    DeliveryVerdict,
    OutboxMessage,
)
from imagefleet.shared.webhooks.outbox_search import OutboxSearch
from imagefleet.shared.webhooks.redis_keys import (
    outbox_answered_key,
    outbox_disabled_key,
    outbox_log_key,
)

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline

log = logging.getLogger(__name__)

NO_RECEIVERS: Final[Mapping[str, int]] = MappingProxyType({})

_MAX_LOGGED: Final = 50
"""The log of a job has at most this many delivery attempts. The schedule has twelve for each of its
events."""
_MAX_GIVEN_UP: Final = 10_000
_UNLIMITED: Final = 1_000_000
PERMITS: Final = 8
"""Callbacks of one tenant that one worker may send to one receiver at a time."""
MAX_SLOW_OF_TENANT: Final = 4
"""All slow receivers of one tenant together have at most this many senders."""
SPARE_FOR_PROVEN: Final = 3
"""A tenant may have as many senders as are free, and so many more for receivers that have answered
lately: those of its own that hang leave it some."""
BUSY_DELAY_S: Final = 1.0
SLOW_DELAY_S: Final = 5.0
"""Delays of messages whose receiver, or its address, is busy or slow."""
_MAX_SCANNED: Final = 200
"""Due messages that one call of the script looks at if receivers are busy."""
_SEARCH_EVERY_S: Final = 1.0
MAX_AGE_S: Final = 88 * 3600.0
"""How long a message may wait without an attempt, since its receiver is slow. Then it is given up.
No schedule of retries lasts longer, unless the receiver asks for it."""
_OVERDUE: Final = DeliveryOutcome(
    verdict=DeliveryVerdict.REFUSED,
    reason=f"no sender was free for it within {MAX_AGE_S / 3600:.0f} hours",
)
_PROMPT_MS: Final = 2_000
"""A receiver that answers later than this holds a sender so long that none is reserved for it."""
_ANSWERED_S: Final = 24 * 3600.0
"""An answer counts for this many seconds. Retries of a day's callbacks then still find a reserved
sender."""
_MAX_ANSWERED: Final = 10_000
"""Receivers that are remembered; anybody may name as many as he likes."""
_WEEK_S: Final = 7 * 24 * 3600
_DISABLED_S: Final = _WEEK_S
"""How long a receiver that answered 410 is disabled."""


class Outbox:
    """This class is the outbox of one namespace. Threads may share it; one of them calls `claim`.

    Its client must decode responses.
    """

    def __init__(
        self, client: "Redis", namespace: str, retention_s: int = _WEEK_S, *, lanes: int = 1
    ) -> None:
        """Keep the log of a job's delivery attempts for `retention_s` after the latest, and this
        lane's part of the given-up messages that all `lanes` of the fleet may keep."""
        self._redis = client
        self._namespace = namespace
        self._retention_s = retention_s
        self._max_given_up = _MAX_GIVEN_UP // lanes
        self._due = outbox_key(namespace)
        self._messages = outbox_messages_key(namespace)
        self._given_up = outbox_given_up_key(namespace)
        self._answered = outbox_answered_key(namespace)
        load = partial(load_script, client, __package__, outbox=True)
        self._add = load("outbox_add")
        self._claim = load("outbox_claim")
        self._search = OutboxSearch()
        self._postpone = load("outbox_postpone")
        self._end_try = load("outbox_end_try")
        self._give_up_script = load("outbox_give_up")
        self._replay = load("outbox_replay")

    def add(self, message: OutboxMessage, pipeline: "Pipeline | None" = None) -> None:
        """Add `message`, due now; within `pipeline` if one is given."""
        self._add(
            keys=[self._due, self._messages],
            args=[message.id, message.dump()],
            client=pipeline,
        )

    def claim(
        self,
        limit: int,
        lease_s: float,
        *,
        busy: Mapping[str, int] = NO_RECEIVERS,
        slow: Collection[str] = (),
        free: int = _UNLIMITED,
        max_slow: int = _UNLIMITED,
        max_unproven: int = _UNLIMITED,
        search_every_s: float = _SEARCH_EVERY_S,
    ) -> list[OutboxMessage]:
        """Claim up to `limit` due messages for `lease_s` each. After that a message is due again,
        unless it was delivered, postponed or given up.

        A share (`OutboxMessage.share`) has 8 permits, and 1 if it is `slow`. `busy` says how many
        of them are taken. At most `max_slow` messages go to slow shares, and at most `max_unproven`
        to receivers that are not in `answered_lately`. Messages that have to wait for slow
        receivers for longer than retries last are given up.

        Args:
            free: senders that are free. No tenant gets more than remain free.
            search_every_s: how often it may look at some 10,000 messages that have to wait. All
                workers together should do so once a second.
        """
        shares: list[str | int] = []
        for share in {*busy, *slow}:
            taken, is_slow = busy.get(share, 0), share in slow
            shares += [share, (1 if is_slow else PERMITS) - taken, taken, int(is_slow)]
        keys = [self._due, self._messages, self._answered]
        args = (limit, lease_s, _MAX_SCANNED, PERMITS, SLOW_DELAY_S, MAX_AGE_S)
        limits = (max_slow, max_unproven, _ANSWERED_S)
        of_tenant = (free, MAX_SLOW_OF_TENANT, SPARE_FOR_PROVEN)
        claimed, overdue = self._search.run(
            lambda passed: self._claim(
                keys=keys, args=[*args, *limits, passed, *of_tenant, *shares]
            ),
            search_every_s,
        )
        for message in self._parse(overdue):
            self._give_up_overdue(message)
        return list(self._parse(claimed))

    def answered_lately(self, receivers: Iterable[str]) -> set[str]:
        """Return those of `receivers` whose latest answer was prompt and within the last day."""
        names = list(dict.fromkeys(receivers))
        with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.zscore(self._answered, name)
            times = read_ignoring_wrong_types(pipe)
        oldest = time.time() - _ANSWERED_S
        return {name for name, at in zip(names, times, strict=True) if at and at > oldest}

    def postpone(self, message: OutboxMessage, pause_s: float) -> None:
        """Make a claimed message that was not sent due again in `pause_s`. No attempt counts. If it
        had to wait for longer than its retries last, it is given up instead.
        """
        keys = [self._due, self._messages]
        if self._postpone(keys=keys, args=[message.id, message.dump(), pause_s, MAX_AGE_S]):
            self._give_up_overdue(message)

    def mark_delivered(self, message: OutboxMessage, outcome: DeliveryOutcome) -> None:
        """Delete `message`, which was delivered, and log the attempt."""
        self._record_try(message, "delivered", outcome)

    def retry(self, message: OutboxMessage, pause_s: float, outcome: DeliveryOutcome) -> None:
        """Make `message`, whose attempts are counted up already, due again in `pause_s`."""
        self._record_try(replace(message, since=0.0), pause_s, outcome)

    def give_up(self, message: OutboxMessage, outcome: DeliveryOutcome) -> None:
        """Stop sending `message`. The latest 10,000 of the fleet are kept for `replay`."""
        self._record_try(message, "given up", outcome)

    def replay(self, message_id: str) -> None:
        """Put a given-up message back with no attempts counted, and enable its receiver.

        Raises:
            UnknownJob: no given-up message has this id.
            MessageRejected: it was given up because it cannot be read.
        """
        text: Any = self._redis.hget(self._messages, message_id)
        message = text and replace(OutboxMessage.parse(text), attempts=0, since=0.0)
        keys = [self._due, self._messages, self._given_up]
        if not message or not self._replay(keys=keys, args=[message_id, message.dump()]):
            raise UnknownJob(
                f"no given-up callback {message_id!r}: "
                "there never was one, or it was delivered, still waits, or was dropped"
            )
        self.enable(message.url)

    def make_due_now(self, message_id: str) -> bool:
        """Let a waiting message be due now. Return False if no waiting message has this id."""
        if read_key(self._redis, lambda pipe: pipe.zscore(self._due, message_id)) is None:
            return False
        clock: Any = self._redis.time()
        self._redis.zadd(self._due, {message_id: clock[0] + clock[1] / 1e6}, xx=True)
        return True

    def discard_test(self, message: OutboxMessage) -> None:
        """Delete a test and the log of its delivery. A worker may still be sending it."""
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.zrem(self._due, message.id)
            pipe.zrem(self._given_up, message.id)
            pipe.hdel(self._messages, message.id)
            pipe.delete(outbox_log_key(self._namespace, message.job_id))
            pipe.execute()

    def disable(self, url: str) -> None:
        """Send nothing to the receiver at `url` for a week."""
        self._redis.set(outbox_disabled_key(self._namespace, url), "410", ex=_DISABLED_S)

    def enable(self, url: str) -> None:
        """Send to the receiver at `url` again."""
        self._redis.delete(outbox_disabled_key(self._namespace, url))

    def is_disabled(self, url: str) -> bool:
        """Return whether the receiver at `url` is disabled."""
        return bool(self.disabled_among([url]))

    def disabled_among(self, urls: Iterable[str]) -> set[str]:
        """Return those of `urls` whose receivers are disabled."""
        asked = list(dict.fromkeys(urls))
        with self._redis.pipeline(transaction=False) as pipe:
            for url in asked:
                pipe.exists(outbox_disabled_key(self._namespace, url))
            answers = pipe.execute()
        return {url for url, is_disabled in zip(asked, answers, strict=True) if is_disabled}

    def count_waiting(self) -> int:
        """Return the number of pending messages."""
        count: Any = self._redis.zcard(self._due)
        return int(count)

    def attempts_of(self, job_id: str) -> list[DeliveryAttempt]:
        """Return the latest delivery attempts of a job's callbacks, newest first."""
        key = outbox_log_key(self._namespace, job_id)
        lines = read_key(self._redis, lambda pipe: pipe.lrange(key, 0, -1))
        return list(_readable(job_id, lines or ()))

    def entries(self, *, failed: bool = False, limit: int = 100) -> list[CallbackEntry]:
        """Return the given-up callbacks, latest first, then the waiting ones, longest due first."""
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrevrange(self._given_up, 0, limit - 1, withscores=True)
            pipe.zrange(self._due, 0, limit - 1, withscores=True)
            given_up, due = read_ignoring_wrong_types(pipe)
        entries = self._entries(given_up or [], CallbackState.GIVEN_UP)
        waiting = [] if failed else self._entries(due or [], CallbackState.WAITING)
        return [*entries, *waiting][:limit]

    def entries_of(self, job_id: str) -> list[CallbackEntry]:
        """Return a job's callbacks: given up, waiting, and delivered as far as its log goes."""
        own: list[str] = []
        if read_key(self._redis, lambda pipe: pipe.hlen(self._messages)):
            own += [key for key, _ in self._redis.hscan_iter(self._messages, match=f"{job_id}.*")]
        entries: list[CallbackEntry] = []
        for key, state in (
            (self._given_up, CallbackState.GIVEN_UP),
            (self._due, CallbackState.WAITING),
        ):
            with self._redis.pipeline(transaction=False) as pipe:
                for each in own:
                    pipe.zscore(key, each)
                scores = zip(own, read_ignoring_wrong_types(pipe), strict=True)
            entries += self._entries([pair for pair in scores if pair[1] is not None], state)
        return [entry for entry in entries if entry.job_id == job_id] + [
            CallbackEntry(
                id=each.id,
                job_id=job_id,
                standing=CallbackState.DELIVERED,
                at=each.at,
                url=each.url,
                attempts=each.attempt,
                last=each,
            )
            for each in self.attempts_of(job_id)
            if each.verdict is DeliveryVerdict.DELIVERED
        ]

    def _entries(
        self, scored: list[tuple[str, float]], state: CallbackState
    ) -> list[CallbackEntry]:
        ids = [key for key, _ in scored]
        texts = read_key(self._redis, lambda pipe: pipe.hmget(self._messages, ids)) if ids else []
        entries = []
        for (_, at), text in zip(scored, texts or (), strict=False):
            with suppress(MessageRejected):  # the delivery loop gives it up and logs that
                message = OutboxMessage.parse(text or "")
                attempts = self.attempts_of(message.job_id)
                last = next((each for each in attempts if each.id == message.id), None)
                entry = CallbackEntry(
                    id=message.id,
                    job_id=message.job_id,
                    standing=state,
                    at=at,
                    url=message.url,
                    attempts=message.attempts if last is None else last.attempt,
                    last=last,
                )
                entries.append(entry)
        return entries

    def _give_up_overdue(self, message: OutboxMessage) -> None:
        log.warning("callback %s is given up: %s", message.id, _OVERDUE.reason)
        self.give_up(message, _OVERDUE)

    def _parse(self, answer: list[str]) -> Iterator[OutboxMessage]:
        """Read the messages in an answer of outbox_claim.lua."""
        for message_id, text in zip(answer[::2], answer[1::2], strict=True):
            try:
                message = OutboxMessage.parse(text)
                if message.id != message_id:
                    raise MessageRejected(f"it has the id {message.id[:80]!r}")
                yield message
            except MessageRejected as error:
                log.error(
                    "callback %s is given up, because it cannot be read: %s", message_id, error
                )
                self._give_up_script(
                    keys=[self._due, self._messages], args=[message_id, text, self._max_given_up]
                )

    def _record_try(
        self, message: OutboxMessage, end: str | float, outcome: DeliveryOutcome
    ) -> None:
        """Record a try. `end` is one of outbox_end_try.lua."""
        line = DeliveryAttempt(
            id=message.id,
            url=message.url,
            attempt=message.attempts,
            verdict=outcome.verdict,
            status=outcome.status,
            reason=outcome.reason,
            ms=outcome.ms,
            at=round(time.time(), 3),
            answer=outcome.answer,
        )
        log_key = outbox_log_key(self._namespace, message.job_id)
        self._end_try(
            keys=[self._due, self._messages, log_key, self._answered],
            args=[
                *(message.id, message.dump(), end, self._max_given_up),
                *(line.model_dump_json(), _MAX_LOGGED, self._retention_s),
                *(message.receiver, _answered(outcome), _MAX_ANSWERED),
            ],
        )


def _readable(job_id: str, lines: Iterable[str]) -> Iterator[DeliveryAttempt]:
    """Yield the delivery attempts that can be read; anybody may have written others."""
    for line in lines:
        try:
            yield DeliveryAttempt.model_validate_json(line)
        except ValidationError as error:
            what = error.errors(include_url=False, include_input=False)[0]["msg"]
            log.warning("a delivery attempt of job %a cannot be read: %s", job_id, what)


def _answered(outcome: DeliveryOutcome) -> str:
    """Return whether a receiver answered promptly, as outbox_end_try.lua takes it."""
    if outcome.status is not None and outcome.ms <= _PROMPT_MS:
        return "1"
    return "0" if outcome.status is not None or outcome.verdict is DeliveryVerdict.RETRY else ""
