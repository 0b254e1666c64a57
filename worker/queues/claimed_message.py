"""Parse a claimed list element into a message that Celery can read."""

import base64
import json
from datetime import UTC, datetime

from kombu.message import Message

from imagefleet.shared.jobs.model import check_job_id
from imagefleet.worker.queues.claims import Claimed


class ClaimedMessage(Message):
    """A kombu message that knows the claim which brought it."""

    claimed: Claimed
    due: float | None
    """Unix seconds; None: at once. The header `eta` is removed: Celery would hold the message until
    then, and forget it when it reconnects."""


def parse_envelope(claimed: Claimed) -> ClaimedMessage:
    """Parse the envelope that kombu's Redis transport writes.

    Raises:
        Exception: the message is not such an envelope. The type depends on what is wrong.
    """
    envelope = json.loads(claimed.message)
    headers, properties, body = envelope["headers"], envelope["properties"], envelope["body"]
    check_job_id(headers["id"])
    if properties.get("body_encoding") == "base64":
        body = base64.b64decode(body)
    message = ClaimedMessage(
        body=body,
        delivery_tag=claimed.tag,
        content_type=envelope["content-type"],
        content_encoding=envelope["content-encoding"],
        headers={**headers, "eta": None},
        properties={**properties, "delivery_tag": claimed.tag},
        delivery_info={**properties["delivery_info"], "redelivered": claimed.deliveries > 1},
        accept={"application/json"},
    )
    message.claimed = claimed
    message.due = _unix_time(headers["eta"]) if headers.get("eta") else None
    return message


def _unix_time(eta: str) -> float:
    """Return the Unix time of an ISO 8601 time, which is UTC unless it names an offset."""
    time = datetime.fromisoformat(eta)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
