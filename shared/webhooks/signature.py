"""Signatures of callbacks: workers sign, and receivers verify.

The format is Standard Webhooks 1.0, https://www.standardwebhooks.com. `shared.jobs.callback_events`
writes the content of callbacks, and `worker.webhooks` delivers them.
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
"""The lengths that the specification allows."""


class InvalidSignature(ValueError):
    """None of the secrets signed the message, or it is older than five minutes."""


def new_secret() -> str:
    """Return a random secret of 32 bytes, as `whsec_` and their base64."""
    return _PREFIX + base64.b64encode(randomness.token_bytes(32)).decode()


def check_secrets(secrets: Sequence[str]) -> None:
    """Raise ConfigurationError, without showing the secret, if one of `secrets` cannot sign."""
    for number, secret in enumerate(secrets, start=1):
        check_secret(secret, f"IMAGEFLEET_WEBHOOK_SECRETS: number {number}")


def check_secret(secret: str, name: str) -> None:
    """Raise ConfigurationError, which shows only its `name`, if a secret cannot sign."""
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except ValueError:
        key = b""
    if not secret.startswith(_PREFIX) or len(key) not in _SECRET_BYTES:
        raise ConfigurationError(
            f"{name} is not {_PREFIX} followed by the base64 of 24 to 64 bytes"
        )


def webhook_id(callback_id: str, occurrence: str) -> str:
    """Return the `webhook-id` of a callback. It is the same for every attempt, so that receivers
    can drop duplicates.

    The occurrence tells events of one job with the same id apart, as of a job which was redriven,
    or deleted and submitted again. The id is a digest, because the signed text is id, timestamp and
    body joined with full stops, and a job's id may contain full stops: a caller could choose an id
    that shifts these borders.
    """
    return f"msg_{hashlib.sha256(f'{callback_id} {occurrence}'.encode()).hexdigest()[:32]}"


def sign(
    callback_id: str, body: str, secrets: Sequence[str], at: datetime, occurrence: str = ""
) -> dict[str, str]:
    """Return the three headers of an attempt at `at`. Each secret signs, so keys can be rotated.

    Args:
        occurrence: see `webhook_id`; empty: the body takes its place.
    """
    message_id = webhook_id(callback_id, occurrence or body)
    at = at.astimezone(UTC)  # the library reads UTC only
    headers = {ID_HEADER: message_id, TIMESTAMP_HEADER: str(int(at.timestamp()))}
    if secrets:
        headers[SIGNATURE_HEADER] = " ".join(
            Webhook(secret).sign(message_id, at, body) for secret in secrets
        )
    return headers


def verify(headers: Mapping[str, str], body: bytes, secrets: Sequence[str]) -> None:
    """Return if one of `secrets` signed these bytes within the last five minutes.

    Args:
        headers: those of the request, with names in lower case.
        body: the bytes as received.
        secrets: one, or several while they are rotated.

    Raises:
        InvalidSignature: none did. The receiver should answer 401 and not read the body.
        ConfigurationError: a secret is not one; see `new_secret`.
    """
    reason = "there is no secret to verify with"
    for number, secret in enumerate(secrets, start=1):
        check_secret(secret, f"secret number {number}")
        try:
            Webhook(secret).verify(body, dict(headers), json_parse=False)
        except WebhookVerificationError as error:
            reason = str(error)
        except (ValueError, OverflowError):  # the headers do not have the form of a signature
            reason = "the headers or the body are malformed"
        else:
            return
    raise InvalidSignature(f"callback refused: {reason}")
