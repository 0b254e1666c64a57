"""Receive claimed messages: give them to Celery, delay them, or refuse them.

Input: a claimed message. Output: a request that Celery's strategy makes of it, a message that waits
in Redis, or a dead letter. Whatever is wrong with a message costs this message only: no error
leaves this module but that Redis is away.
"""

from collections.abc import Callable
from typing import Any, Final

from imagefleet.shared.bulk.shard_message import unpack_shard
from imagefleet.shared.errors import (
    ImagefleetError,
    MessageRejected,
    NewerMessage,
    TooManyDeliveries,
)
from imagefleet.shared.jobs.add_ons import chosen_add_ons
from imagefleet.shared.jobs.celery_message import BULK_TASK_NAME, TASK_NAME
from imagefleet.shared.jobs.message_arguments import request_fields
from imagefleet.shared.jobs.queues import list_for_add_ons
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.write_errors import is_outage
from imagefleet.worker.jobs.input_images import InputImages
from imagefleet.worker.jobs.input_permits import ReturnSchedule, image_source
from imagefleet.worker.jobs.job_lanes import JobLane
from imagefleet.worker.process import metrics
from imagefleet.worker.queues.claim_types import Claimed
from imagefleet.worker.queues.claimed_message import ClaimedMessage, parse_envelope

_SHARD_FACTOR: Final = 6
"""The message of a shard may have this many times the deliveries of a job's message."""


class MessageReceiver:
    """The receiver looks at every claimed message of a lane first."""

    def __init__(
        self,
        lane: JobLane,
        is_held: Callable[[str], bool],
        input_images: InputImages,
        returns: ReturnSchedule,
        max_deliveries: int,
    ) -> None:
        """Take a function that returns whether this worker holds a claim, of any lane, and when
        delayed jobs of all lanes return."""
        starter = lane.starter
        self._claims = lane.claims
        self._is_held = is_held
        self._refuser = starter.refuser
        self.reject: Final = self._refuser.reject_message
        self._add_ons, self._reads_weights = starter.add_ons, starter.reads_weights
        self._input_images = input_images
        self._returns = returns
        self._max_deliveries = max_deliveries

    def receive(self, claimed: Claimed, task: str, strategy: Callable[..., Any]) -> bool:
        """Give a message for `task` to Celery's strategy. Return whether Redis has it again.

        Afterwards the message is accepted by Celery, or its claim is gone.

        Raises:
            redis.RedisError: Redis is away. The message is to be received again.
        """
        try:
            return self._delay_or_hand_over(claimed, task, strategy)
        except ImagefleetError as error:
            self._refuser.reject_message(claimed, error)
        except Exception as error:  # anybody can write anything to a queue
            if is_outage(error):
                raise
            reason = f"cannot be read: {type(error).__name__}: {error}"
            self._refuser.reject_message(claimed, MessageRejected(reason))
        return False

    def _delay_or_hand_over(
        self, claimed: Claimed, task: str, strategy: Callable[..., Any]
    ) -> bool:
        """Give a message to Celery's strategy. Return whether it was delayed or moved instead."""
        self._check_unopened(claimed, task)
        message = parse_envelope(claimed, task)
        if task == TASK_NAME:
            self._refuser.check_lane(message.headers["id"])
        try:
            if message.due is not None and self._claims.delay(claimed.tag, message.due):
                return True
            request = _read_request(message, task)
            self._leave_weights_to_others(request, message)
            if self._moved_to_holders(request, message):
                return True
        except NewerMessage as error:
            record = self._refuser.record_key(message.headers["id"])
            if not self._claims.postpone(claimed, record, message.origin.request_sha1):
                # No newer worker came in time, or the job was deleted.
                raise MessageRejected(str(error)) from error
            return True
        if self._delay_without_permit(message):
            return True
        self._hand_to_celery(message, strategy)
        return False

    def _check_unopened(self, claimed: Claimed, task: str) -> None:
        """Refuse a message for what can be known before anything of it is opened.

        The first delivery beyond the limit is left to `JobStarter` and `generate_rows`, which end
        the message and record more about it.
        """
        factor = _SHARD_FACTOR if task == BULK_TASK_NAME else 1
        if claimed.deliveries > factor * self._max_deliveries + 1:
            raise TooManyDeliveries(f"{claimed.deliveries - 1} workers died with this message")
        if claimed.too_long:
            raise MessageRejected(
                f"the message is longer than {len(claimed.message)} characters, and is not read"
            )

    def _leave_weights_to_others(self, request: JobRequest | None, message: ClaimedMessage) -> None:
        """Raise NewerMessage for a job with weights in its prompt if this worker reads none.

        Its producer saw the offer of a worker that does. Without a record `JobStarter` refuses it.
        """
        if request is None or not message.origin.recorded or self._reads_weights:
            return
        if request.prompt_weighting:
            raise NewerMessage(
                "the job has prompt_weighting, and this worker has IMAGEFLEET_PROMPT_CHUNKS=0; "
                "give all workers of its model the same number"
            )

    def _moved_to_holders(self, request: JobRequest | None, message: ClaimedMessage) -> bool:
        """Move a job that needs add-ons which only other workers hold. Return whether it was.

        Its producer saw an offer with them. Without a record it is not moved, because its producer
        was plain Celery; then `JobStarter` refuses it.
        """
        if request is None or not message.origin.recorded:
            return False
        names = chosen_add_ons(request)
        if names <= self._add_ons:
            return False
        claimed = message.claimed
        self._claims.move(claimed.tag, list_for_add_ons(claimed.list_key, names))
        return True

    def _delay_without_permit(self, message: ClaimedMessage) -> bool:
        """Delay a job that needs input images if there is no permit for it."""
        source = image_source(request_fields(message.task_arguments))
        tag = message.claimed.tag
        if source is None or self._input_images.reserve_permit(tag, source, self._is_held):
            return False
        metrics.INPUT_IMAGE_DELAYS.inc()
        pause_s = self._returns.next_pause_s(source.tenant)
        record = self._refuser.record_key(message.headers["id"])
        self._claims.delay_queued(tag, pause_s, record, message.origin.request_sha1)
        return True

    def _hand_to_celery(self, message: ClaimedMessage, strategy: Callable[..., Any]) -> None:
        claimed, job_id = message.claimed, message.headers["id"]

        def on_ack(*_: Any) -> None:
            if self._claims.holds(claimed.tag):  # else its message has ended with its job
                self._refuser.acknowledge(claimed, job_id)

        def on_reject(_log: Any, _errors: Any, requeue: bool = False) -> None:
            if requeue:
                self._claims.requeue(claimed.tag, counted=True)
            else:
                self._refuser.reject_message(claimed, MessageRejected("rejected by its task"))

        strategy(message, None, on_ack, on_reject, [])


def _read_request(message: ClaimedMessage, task: str) -> JobRequest | None:
    """Read the request of a job, keep it in the message, and return it.

    None: the message brings a shard, or the request cannot be read. Then `JobStarter` refuses the
    job later, so that the refusal reaches the callers of Celery's results too.

    Raises:
        NewerMessage: only a newer worker can read the arguments.
        MessageRejected: they are not those of a shard.
    """
    if task == BULK_TASK_NAME:
        unpack_shard(message.task_arguments)
        return None
    request = message.job_request = message.origin.read_request()
    if isinstance(request, NewerMessage):
        raise request
    return request if isinstance(request, JobRequest) else None
