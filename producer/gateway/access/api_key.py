"""Define an API key: its record, its scopes, and the text that its holder sends.

    ifk_<id>_<secret>    ifk_k3v9q2xw7m_<43 letters and digits>

The id is no secret: records are found by it, and logs name it. Only the digest of the secret is
stored. This module does not depend on Redis.
"""

import hashlib
import re
import secrets
import string
from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from imagefleet.shared.jobs.model import Model, QueueSafeName, Time
from imagefleet.shared.jobs.parameter_types import Priority
from imagefleet.shared.text.printable import printable

MAX_PER_MINUTE: Final = 100_000
MAX_IMAGES_PER_DAY: Final = 1_000_000_000
_PREFIX: Final = "ifk_"
_ID_CHARACTERS: Final = (
    string.ascii_lowercase + "234567"
)  # base32: no digit that looks like a letter
_ID_LENGTH: Final = 10
_SECRET_CHARACTERS: Final = string.ascii_letters + string.digits
_SECRET_LENGTH: Final = 43
"""So many of 62 characters have as much entropy as 32 random bytes."""
_TEXT: Final = re.compile(rf"ifk_([a-z2-7]{{{_ID_LENGTH}}})_([A-Za-z0-9]{{{_SECRET_LENGTH}}})")
_MAX_NAME: Final = 100


class Scope(StrEnum):
    """A key has one or more of these rights."""

    SUBMIT = "submit"  # submit jobs and batches, and cancel its tenant's
    READ = "read"  # read jobs and images of its tenant
    OPERATE = "operate"  # read the state of the fleet, redrive dead letters, replay callbacks


def _check_name(name: str) -> str:
    if not 1 <= len(name) <= _MAX_NAME or printable(name) != name:
        raise ValueError(f"must be 1 to {_MAX_NAME} printable characters")
    return name


def _known_scopes(scopes: object) -> object:
    """Leave out the scopes of newer releases: the key has fewer rights here."""
    if isinstance(scopes, Collection) and not isinstance(scopes, str):
        return [scope for scope in scopes if scope in list(Scope)]
    return scopes


class ApiKey(Model):
    """A key has this record. It holds no secret."""

    model_config = ConfigDict(extra="ignore")  # newer releases may write more fields
    id: str
    name: Annotated[str, AfterValidator(_check_name)]
    """People recognize the key by it; keys may share a name."""
    tenant: QueueSafeName
    scopes: Annotated[tuple[Scope, ...], BeforeValidator(_known_scopes)]
    max_priority: Priority = 3
    """The highest priority, so the smallest number, that jobs of this key may have."""
    per_minute: Annotated[int, Field(ge=1, le=MAX_PER_MINUTE)] | None = None
    """Requests that are answered in any 60 seconds. None: no limit."""
    images_per_day: Annotated[int, Field(ge=0, le=MAX_IMAGES_PER_DAY)] | None = None
    """Images that may be ordered in one UTC day. None: no limit."""
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$", repr=False)]
    """This is the SHA-256 of the secret, in hexadecimal."""
    created_at: Time
    expires_at: Time | None = None
    """From this time on the key is refused. None: it does not expire."""
    revoked_at: Time | None = None
    """Somebody revoked the key at this time. None: nobody did."""

    def is_valid_at(self, now: float) -> bool:
        """Return whether the key is neither revoked nor expired at this time, in Unix seconds."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def new_id() -> str:
    """Return a random id of a key."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))


def new_secret() -> str:
    """Return a random secret of 256 bits in letters and digits."""
    return "".join(secrets.choice(_SECRET_CHARACTERS) for _ in range(_SECRET_LENGTH))


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a secret in hexadecimal.

    A fast hash without salt suffices, because the secret is random and nobody can try 2^256 of
    them: NIST SP 800-63B, section 5.1.2.2, asks for salt and a slow hash only below 112 bits.
    """
    return hashlib.sha256(secret.encode()).hexdigest()


def key_text(key_id: str, secret: str) -> str:
    """Return what the holder of the key sends."""
    return f"{_PREFIX}{key_id}_{secret}"


def split_text(text: str) -> tuple[str, str] | None:
    """Return id and secret of a key's text; None if it has another form."""
    parts = _TEXT.fullmatch(text)
    return None if parts is None else (parts[1], parts[2])


def id_in(text: str) -> str:
    """Return the id in a key's text or in its beginning, as in `ifk_<id>`; an id as it is."""
    return text.removeprefix(_PREFIX).partition("_")[0]
