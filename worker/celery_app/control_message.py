"""Read a message of Celery's remote control. Anybody on the same Redis may write one.

Input: the bytes of a Redis publication. Output: a `ControlMessage`, or a ValueError that says in a
sentence what is wrong.
"""

import base64
import fnmatch
import json
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MAX_MESSAGE_BYTES: Final = 65_536
"""A longer message is not read. Celery's own have some hundred bytes."""
_MAX_NAME: Final = 200
_MAX_NAMES: Final = 1_000


class ReplyTo(BaseModel):
    """Where the sender of a command waits for answers."""

    model_config = ConfigDict(strict=True)

    exchange: str = Field(max_length=_MAX_NAME)
    routing_key: str = Field(max_length=_MAX_NAME)


class ControlMessage(BaseModel):
    """A command, to all workers of the namespace or to some. Source: `kombu.pidbox`, kombu 5.7."""

    model_config = ConfigDict(strict=True)

    method: str = Field(max_length=_MAX_NAME)
    """It names the command."""
    arguments: dict[str, Any] | None = None
    destination: list[str] | None = Field(None, max_length=_MAX_NAMES)
    """The names of the workers that the command is for. None: all."""
    pattern: str | None = Field(None, max_length=_MAX_NAME)
    """It selects workers by name, as file names are selected in a shell."""
    matcher: Literal["glob"] | None = None
    """Celery has regular expressions, too. One of them can take a worker's time for ever."""
    reply_to: ReplyTo | None = None
    ticket: str | None = Field(None, max_length=_MAX_NAME)
    """It tells the sender to which of its commands an answer belongs."""

    def is_for(self, worker: str) -> bool:
        """Return whether the worker of this name has to follow the command."""
        if self.destination:
            return worker in self.destination
        return self.pattern is None or fnmatch.fnmatchcase(worker, self.pattern)


def read_message(data: bytes) -> ControlMessage:
    """Return the command in kombu's envelope.

    Raises:
        ValueError: it is too long, is not JSON, or has another form. The text is one sentence.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise ValueError(f"it has {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are read")
    try:
        envelope = json.loads(data)
    except RecursionError:
        raise ValueError("its JSON is nested too deep") from None
    if not isinstance(envelope, dict) or not isinstance(envelope.get("body"), str):
        raise ValueError("it is not an envelope of kombu with a text as its body")
    try:
        return ControlMessage.model_validate(json.loads(_body(envelope)))
    except RecursionError:
        raise ValueError("the JSON of its body is nested too deep") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "its body"
        raise ValueError(f"{field}: {first['msg']}") from None


def _body(envelope: dict[str, Any]) -> str | bytes:
    properties = envelope.get("properties")
    encoding = properties.get("body_encoding") if isinstance(properties, dict) else None
    body: str = envelope["body"]
    return base64.b64decode(body, validate=True) if encoding == "base64" else body
