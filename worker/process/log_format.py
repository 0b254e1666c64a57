"""Write log lines as JSON objects, for systems that collect and search logs.

A line has the fields `time` (UTC, RFC 3339), `level`, `logger`, `message`, `thread`, and those of
the block that it was written in, as `job` and `tenant`. A traceback is in `exception`.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

_FIELDS: Final[ContextVar[dict[str, str]]] = ContextVar("log fields")


@contextmanager
def log_fields(**fields: str | None) -> Iterator[None]:
    """Add fields to the lines that this thread writes inside the block, except those of None."""
    known = {name: value for name, value in fields.items() if value is not None}
    token = _FIELDS.set({**_FIELDS.get({}), **known})
    try:
        yield
    finally:
        _FIELDS.reset(token)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object. Install it behind the `PrintableFilter`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object in one line of ASCII."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName or "",
            **_FIELDS.get({}),
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exception"] = record.exc_text
        return json.dumps(line)


def use_json(logger: logging.Logger) -> None:
    """Let all handlers of `logger` write JSON."""
    for handler in logger.handlers:
        handler.setFormatter(JsonFormatter())
