"""Say who sends a request, and what that caller may do."""

from dataclasses import dataclass
from typing import Final, Self

from imagefleet.producer.gateway.access.api_key import ApiKey, Scope


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The caller sends one request."""

    key_id: str | None
    """None: a proxy named the user, or the gateway asks for no keys."""
    name: str
    tenant: str | None
    """The tenant of all jobs that the caller submits or sees. None: whatever a request names."""
    scopes: frozenset[Scope]
    max_priority: int
    """The highest priority, so the smallest number, that its jobs may have."""
    per_minute: int | None = None
    images_per_day: int | None = None
    refused: str | None = None
    """It says why the caller is refused, as `is revoked`. None: it may send requests."""

    @classmethod
    def of(cls, key: ApiKey, now: float) -> Self:
        """Return the caller who holds this key at this time, in Unix seconds."""
        invalid = "is revoked" if key.revoked_at is not None else "has expired"
        return cls(
            key_id=key.id,
            name=key.name,
            tenant=key.tenant,
            scopes=frozenset(key.scopes),
            max_priority=key.max_priority,
            per_minute=key.per_minute,
            images_per_day=key.images_per_day,
            refused=None if key.is_valid_at(now) else invalid,
        )

    def __str__(self) -> str:
        """Return how errors name the caller."""
        return f"the key {self.key_id}" if self.key_id else f"the user {self.name}"

    @property
    def owner(self) -> str:
        """What names the caller apart from all others, of its tenant too: the id of its key, or
        `user:` and the user that a proxy named; '' if the gateway asks for no keys."""
        return self.key_id or (f"user:{self.tenant}" if self.tenant else "")

    def may(self, scope: Scope) -> bool:
        """Return whether the caller has this right."""
        return scope in self.scopes


LOOPBACK: Final = Caller(
    key_id=None, name="loopback", tenant=None, scopes=frozenset(Scope), max_priority=0
)
"""This is the caller at a gateway that listens on a loopback address and asks for no keys."""
