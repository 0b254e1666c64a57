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

    @classmethod
    def of(cls, key: ApiKey) -> Self:
        """Return the caller who holds this key."""
        return cls(
            key_id=key.id,
            name=key.name,
            tenant=key.tenant,
            scopes=frozenset(key.scopes),
            max_priority=key.max_priority,
            per_minute=key.per_minute,
            images_per_day=key.images_per_day,
        )

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
