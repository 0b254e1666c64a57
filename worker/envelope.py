"""From a claimed list element to the message Celery knows how to read."""

import base64
import json

from kombu.message import Message

from shared.jobs import check_job_id
from worker.claims import Claimed


class ClaimedMessage(Message):
    """A kombu message that remembers which claim it came with."""

    claimed: Claimed


def open_envelope(claimed: Claimed) -> ClaimedMessage:
    """Open kombu's Redis envelope. Raises almost anything if it is none."""
    envelope = json.loads(claimed.message)
    properties, body = envelope["properties"], envelope["body"]
    check_job_id(envelope["headers"]["id"])
    if properties.get("body_encoding") == "base64":
        body = base64.b64decode(body)
    message = ClaimedMessage(
        body=body,
        delivery_tag=claimed.tag,
        content_type=envelope["content-type"],
        content_encoding=envelope["content-encoding"],
        headers=envelope["headers"],
        properties={**properties, "delivery_tag": claimed.tag},
        delivery_info={**properties["delivery_info"], "redelivered": claimed.deliveries > 1},
        accept={"application/json"},
    )
    message.claimed = claimed
    return message
