"""From a claimed list element to the message Celery knows how to read."""

import base64
import json
from datetime import UTC, datetime

from kombu.message import Message

from imagefleet.shared.jobs.model import check_job_id
from imagefleet.worker.queues.claims import Claimed


class ClaimedMessage(Message):
    """A kombu message that remembers which claim it came with."""

    claimed: Claimed
    due: float | None
    """Unix seconds; None: at once. Its header `eta` is taken away: Celery would keep the message in
    hand until then, and forget it when it reconnects."""


def open_envelope(claimed: Claimed) -> ClaimedMessage:
    """Open kombu's Redis envelope. Raises almost anything if it is none."""
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
    """Of an ISO 8601 time, which is UTC unless it says otherwise."""
    time = datetime.fromisoformat(eta)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
