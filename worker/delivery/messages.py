"""What waits in the outbox: one callback, ready to be signed and sent."""

import json
from dataclasses import asdict, dataclass
from typing import Self
from urllib.parse import urlsplit

from shared.errors import MessageRejected


@dataclass(frozen=True, kw_only=True)
class Message:
    """The JSON object in `<namespace>:outbox:messages`. Whoever writes it writes these fields."""

    id: str
    """Of the event: the same for every try, and for the same event told twice."""
    job_id: str
    url: str
    body: str
    """Exactly what is signed and posted."""
    attempts: int = 0
    """Tries so far."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises MessageRejected."""
        try:
            fields = json.loads(text)
            message = cls(
                **{name: str(fields[name]) for name in ("id", "job_id", "url", "body")},
                attempts=int(fields.get("attempts", 0)),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise MessageRejected(f"outbox holds no message but {text[:80]!r}: {error}") from None
        return message

    @property
    def receiver(self) -> str:
        """Host and port as in the URL: what shares a fate."""
        return urlsplit(self.url).netloc

    def dump(self) -> str:
        return json.dumps(asdict(self))
