"""Signatures of callbacks: how a worker signs, how a receiver believes.

Standard Webhooks 1.0, https://www.standardwebhooks.com. Knows neither what a callback says
(`shared.jobs.events`) nor how it travels (`worker.webhooks`).
"""

import base64
import hashlib
import secrets as randomness
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from standardwebhooks import Webhook, WebhookVerificationError

from imagefleet.shared.errors import ConfigurationError

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"

_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = range(24, 65)
"""What the specification allows."""


class InvalidSignature(ValueError):
    """A message does not come from who it says, was altered, or is older than five minutes."""


def new_secret() -> str:
    return _PREFIX + base64.b64encode(randomness.token_bytes(32)).decode()


def check_secrets(secrets: Sequence[str]) -> None:
    """Raise ConfigurationError, without showing the secret, unless all can sign."""
    for number, secret in enumerate(secrets, start=1):
        try:
            key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except ValueError:
            key = b""
        if not secret.startswith(_PREFIX) or len(key) not in _SECRET_BYTES:
            raise ConfigurationError(
                f"IMAGEFLEET_WEBHOOK_SECRETS: number {number} is not {_PREFIX} followed by the "
                "base64 of 24 to 64 bytes"
            )


def webhook_id(callback_id: str) -> str:
    """The `webhook-id` of a callback: the same for every try, so receivers can drop doubles.

    A digest, because a job's id may hold a full stop and the signed text is joined with them: a
    caller could otherwise choose an id that moves the borders of what is signed.
    """
    return f"msg_{hashlib.sha256(callback_id.encode()).hexdigest()[:32]}"


def sign(callback_id: str, body: str, secrets: Sequence[str], at: datetime) -> dict[str, str]:
    """The three headers for one try at `at`. Each secret signs, so that keys can be rotated."""
    message_id, at = webhook_id(callback_id), at.astimezone(UTC)  # the library reads UTC only
    headers = {ID_HEADER: message_id, TIMESTAMP_HEADER: str(int(at.timestamp()))}
    if secrets:
        headers[SIGNATURE_HEADER] = " ".join(
            Webhook(secret).sign(message_id, at, body) for secret in secrets
        )
    return headers


def verify(headers: Mapping[str, str], body: bytes, secrets: Sequence[str]) -> None:
    """Return if one of `secrets` signed these bytes within the last five minutes.

    Raises:
        InvalidSignature: it did not; answer 401 and do not read the body.
    """
    reason = "no secret to verify with"
    for secret in secrets:
        try:
            Webhook(secret).verify(body, dict(headers), json_parse=False)
        except WebhookVerificationError as error:
            reason = str(error)
        except (ValueError, OverflowError):  # headers that are not even shaped like a signature
            reason = "malformed headers or body"
        else:
            return
    raise InvalidSignature(f"callback refused: {reason}")
