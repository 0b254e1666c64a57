"""Claims record which worker holds which queue message, and for how long.

Input: queue names. Output: messages, which are opaque strings of ordinary Celery queues. This
module does not depend on jobs.

One script pops messages and records the worker as their holder, so a worker that dies at any
instruction loses none of them: other workers reclaim its messages. The lease belongs to the worker
process, not to each message: one command renews it however many jobs are in flight, and a job may
run for any time.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import Final, cast

import redis

from imagefleet.shared.jobs.redis_keys import claims_key, delayed_key, deliveries_key, postponed_key
from imagefleet.shared.redis_client.scripts import call_many, load_script
from imagefleet.worker.process import metrics
from imagefleet.worker.queues.claim_script import ClaimScript
from imagefleet.worker.queues.claim_types import Claimed, QueueGroup, attempt_name, tag_number
from imagefleet.worker.queues.lease import Lease

log = logging.getLogger(__name__)

NO_LIMIT: Final = 1_000_000
_REQUEUED: Final = 2
"""What `acknowledge_or_requeue.lua` returns if it requeued instead of acknowledging."""


class Claims:
    """This object makes, releases and requeues the claims of one worker process.

    Threads may share it; only one of them calls `claim`. Claims go through `no_retry_client`: after
    a lost answer the claim has happened, and a retry would claim more; `requeue_orphans` requeues
    such messages. Acknowledgements and requeues go through `retrying_client`, which waits until
    Redis is back: they are idempotent.
    """

    def __init__(
        self,
        *,
        no_retry_client: redis.Redis,
        retrying_client: redis.Redis,
        namespace: str,
        worker: str,
        lease_s: float,
        max_message_bytes: int = 1_048_576,  # the prompts of a job need up to 130 kB
        newer_message_s: float = 3600.0,
        lane: int = 0,
        lanes: int = 1,
    ) -> None:
        """A message may be postponed for `newer_message_s`. Tags tell the `lane` of the claims."""
        self.worker: Final = worker
        self.lease: Final = Lease(no_retry_client, namespace, worker, lease_s, lanes)
        """It is the lease on all claims of this worker. `claim` needs one."""
        self.deliveries: Final = deliveries_key(namespace)
        """The hash that counts the deliveries of messages whose workers died."""
        self._later = delayed_key(namespace)
        self._prefix = claims_key(namespace, "")
        self._no_retry_client = no_retry_client
        self._retrying_client = retrying_client
        self._held: set[str] = set()
        self._requeuing: set[str] = set()
        self._abandoned: set[str] = set()
        self._answered_claim = 0
        """Number of the latest claim that was answered."""
        self._lost_answers: set[int] = set()
        """Numbers of later claims that happened all the same, as their orphans show."""
        self._claim_lock = threading.Lock()
        self._paused_until = float("-inf")
        self._max_message_bytes = max_message_bytes
        self._newer_message_s = newer_message_s
        self._postponed_prefix = postponed_key(namespace, "")
        self._claim = ClaimScript(no_retry_client, namespace, worker, self.lease, lane, lanes)
        self._delay = load_script(no_retry_client, __package__, "delay")
        self._postpone = load_script(no_retry_client, __package__, "postpone")
        self._delay_queued = load_script(no_retry_client, __package__, "delay_queued")
        self._move = load_script(no_retry_client, __package__, "move")
        self._release = load_script(retrying_client, __package__, "acknowledge_or_requeue")

    @property
    def key(self) -> str:
        """The hash that holds this worker's claims: tag to message."""
        return self._prefix + self.worker

    def pause(self, seconds: float) -> None:
        """Claim nothing for so many seconds, so that others can."""
        self._paused_until = time.monotonic() + seconds

    def claim(
        self,
        groups: Sequence[QueueGroup],
        wanted_images: int,
        *,
        max_messages: int = NO_LIMIT,
        suspect_from: int = NO_LIMIT,
        ignored_tags: Collection[str] = (),
        default_steps: int = 0,
        batch_steps: int = 0,
        holds_others: bool = False,
    ) -> list[Claimed]:
        """Claim messages of one group until they make `wanted_images`, highest priority first.

        Inside a priority level tenants take turns by their weights, then the groups of a tenant,
        then the queues of a group. A message is never split: the last may make more images than
        wanted. A queue gives its head first, then like step counts: see step_affinity.lua.
        A message is suspect from its delivery `suspect_from` on. It is claimed alone, and only
        while this worker holds nothing else. A message that is too long is cut; see
        `Claimed.too_long`.

        Args:
            groups: queues to claim from. The claim finds those of tenants and of add-ons beside
                them.
            wanted_images: free slots of the batch, at least 1.
            max_messages: messages that may be claimed.
            ignored_tags: claims that this worker may hold beside a suspect.
            default_steps: denoising steps of a message that names none.
            batch_steps: most steps among the jobs that are in the batch already.
            holds_others: whether this worker holds messages of other lanes.

        Raises:
            LeaseLost: the lease expired; call `lease.acquire` first.
            redis.RedisError: messages may be claimed nevertheless; `requeue_orphans` requeues them.
        """
        if time.monotonic() < self._paused_until:
            return []
        request = {
            "groups": {queue: group.name for group in groups for queue in group.queues},
            "add_ons": sorted({name for group in groups for name in group.add_ons}),
            "wanted_images": wanted_images,
            "max_messages": max_messages,
            "suspect_from": suspect_from,
            "idle": not holds_others and self._held <= set(ignored_tags),
            "default_steps": default_steps,
            "batch_steps": batch_steps,
            "max_message_bytes": self._max_message_bytes,
        }
        with self._claim_lock:
            claimed = self._claim.run(request, bulk=any(group.bulk for group in groups))
            self._answered_claim = self._claim.number
            self._lost_answers.clear()
            self._held.update(message.tag for message in claimed)
        metrics.REDELIVERIES.inc(sum(message.deliveries > 1 for message in claimed))
        return claimed

    def ack(self, tag: str, record: str = "", *, shard: str = "") -> bool:
        """Acknowledge a message. Return False if this worker did not hold it any more.

        Args:
            record: key of the job's record. If the record is queued, or running by the attempt of
                this claim, the message is requeued instead: this server was a replica when the job
                ended, and the end did not reach it; or the message breaks the task before it ends
                its record. A delivery is counted, unless `announce_requeue` named the tag.
            shard: field of `record` that holds a shard's state.
        """
        keys = [self.key, self.deliveries, *filter(None, [record])]
        counted = tag not in self._requeuing
        try:
            outcome = self._release(
                keys=keys, args=[tag, 0, int(counted), self.attempt(tag), shard]
            )
        finally:
            self.forget([tag])
        if outcome == _REQUEUED:
            log.warning(
                "the message of %s %s is requeued, because its record has not ended; this %s",
                *(record, shard, f"{'counts' if counted else 'does not count'} as a delivery"),
            )
        return bool(outcome)

    def attempt(self, tag: str) -> str:
        """Return the name of the attempt of claim `tag`; see `Claimed.attempt`."""
        return attempt_name(self.worker, tag)

    def announce_requeue(self, tags: Collection[str]) -> None:
        """Say that `tags` are about to be requeued uncounted, once their records are queued.

        Celery may acknowledge one of them in between. That requeues it, and must not count either.
        """
        self._requeuing.update(tags)

    def requeue(self, *tags: str, counted: bool = False) -> int:
        """Put messages back to the head of their queues, in one round trip. Return how many.

        The message of the last tag ends at the very head. Messages that this worker does not hold
        any more stay where they are.

        Args:
            counted: count a delivery, as if this worker had died with them.
        """
        return self._requeue(tags, counted=counted)

    def delay(self, tag: str, due: float) -> bool:
        """Release a message until `due` (Unix seconds); then it returns to the head of its queue.
        Return False, and keep the message, if it is due already by Redis' clock."""
        if not self._delay(keys=[self.key, self._later], args=[tag, due]):
            return False
        self._held.discard(tag)
        return True

    def postpone(self, claimed: Claimed, record: str, request_sha1: str = "") -> bool:
        """Release a message that only a newer worker can handle. It returns after 5 to 60 s, as the
        `retry_at` of the job with the key `record` says.

        Return False, and keep the message, if it was first postponed `newer_message_s` ago, or if
        `record` has another request than that with `request_sha1` (empty: not known).
        """
        keys = [self.key, self._later, self._postponed_prefix + _sha1(claimed.message), record]
        if not self._postpone(keys=keys, args=[claimed.tag, self._newer_message_s, request_sha1]):
            return False
        self._held.discard(claimed.tag)
        return True

    def delay_queued(self, tag: str, pause_s: float, record: str, request_sha1: str = "") -> None:
        """Release the message of a job that has not started; it returns after `pause_s`.

        The `retry_at` of the job with the key `record` says when, unless `record` has another
        request than that with `request_sha1` (empty: not known).
        """
        self._delay_queued(keys=[self.key, self._later, record], args=[tag, pause_s, request_sha1])
        self._held.discard(tag)

    def move(self, tag: str, list_key: str) -> None:
        """Release a message for workers that serve the queue of another list."""
        self._move(keys=[self.key, list_key], args=[tag])
        self._held.discard(tag)

    def reset_deliveries(self, message: str) -> None:
        """Reset the delivery count of `message`, which made progress in this worker."""
        self._retrying_client.hdel(self.deliveries, _sha1(message))

    def find(self, tag: str) -> tuple[str, str] | None:
        """Return queue list and message of a claim; None if this worker lost it."""
        entry = cast(str | None, self._no_retry_client.hget(self.key, tag))
        if entry is None:
            return None
        list_key, _, message = entry.partition("\0")
        return list_key, message

    def runs_elsewhere(self, attempt: str | None, tag: str) -> bool:
        """Return whether `attempt` (see `Claimed.attempt`) is of another claim that exists."""
        worker, _, other = (attempt or "").rpartition("/")
        if not worker or attempt == self.attempt(tag):
            return False
        return bool(self._retrying_client.hexists(self._prefix + worker, other))

    def requeue_orphans(self) -> int:
        """Requeue the orphaned claims of this worker, and return their number.

        A claim is orphaned if its answer got lost, if it was abandoned, or if it was released and a
        Redis that restarted or failed over still has it. A delivery is counted for abandoned
        claims, and for lost answers if several were lost in a row: a message may be the reason. A
        claim that did not reach Redis leaves no orphans, so an outage counts nothing.
        """
        with self._claim_lock:
            orphans = set(cast(list[str], self._no_retry_client.hkeys(self.key))) - self._held
            claims = {int(tag_number(tag)) for tag in orphans}
            self._lost_answers |= {each for each in claims if each > self._answered_claim}
            counted = orphans if len(self._lost_answers) > 1 else orphans & self._abandoned
        youngest_first = sorted(orphans - counted, key=tag_number, reverse=True)
        requeued = self._requeue(youngest_first, client=self._no_retry_client)
        youngest_first = sorted(counted, key=tag_number, reverse=True)
        return requeued + self._requeue(youngest_first, counted=True, client=self._no_retry_client)

    def held_tags(self) -> set[str]:
        """Return the tags of all messages that are neither acknowledged nor requeued yet."""
        return self._held.copy()

    def holds(self, tag: str) -> bool:
        """Whether the message is neither acknowledged nor requeued yet."""
        return tag in self._held

    def _requeue(
        self, tags: Collection[str], *, counted: bool = False, client: redis.Redis | None = None
    ) -> int:
        keys = [self.key, self.deliveries]
        calls = [(keys, [tag, 1, int(counted)]) for tag in tags]
        try:
            return sum(call_many(self._release, client or self._retrying_client, calls))
        finally:
            self.forget(tags)

    def abandon(self, tags: Collection[str]) -> None:
        """Stop holding `tags`, which nothing attends to. They are requeued, counted, as orphans."""
        self._abandoned.update(tags)
        self._held.difference_update(tags)

    def forget(self, tags: Collection[str]) -> None:
        """Stop holding `tags`. A claim that Redis did not release is orphaned from now on."""
        for known in (self._held, self._requeuing, self._abandoned):
            known.difference_update(tags)


def _sha1(message: str) -> str:
    return hashlib.sha1(message.encode()).hexdigest()
