"""Name the job and the worker in log lines, and write lines as JSON for systems that collect them.

A JSON line has the fields `time` (UTC, RFC 3339), `level`, `logger`, `message`, `thread`, `worker`,
and those of the block that it was written in, as `job_id` and `tenant`. A traceback is in
`exception`. A line of text ends with `job_id` and `worker` if it is about a job.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

from imagefleet.shared.text.printable import printable

_FIELDS: Final[ContextVar[dict[str, str]]] = ContextVar("log fields")
_JOB_TASK: Final = "imagefleet.render"
_MAX_ID: Final = 128
_process: Final[dict[str, str]] = {}
"""All lines of this process have these fields."""


def name_worker(worker: str) -> None:
    """Add the worker to all lines that this process writes from now on."""
    _process["worker"] = worker


@contextmanager
def log_fields(**fields: str | None) -> Iterator[None]:
    """Add fields to the lines that this thread writes inside the block, except those of None."""
    known = {name: value for name, value in fields.items() if value is not None}
    token = _FIELDS.set({**_FIELDS.get({}), **known})
    try:
        yield
    finally:
        _FIELDS.reset(token)


def fields_of(record: logging.LogRecord) -> dict[str, str]:
    """Return the fields of a line: those of its process, of its block, and the job that Celery
    writes about. Whoever sends a message chooses its id."""
    fields = {**_process, **_FIELDS.get({})}
    data = getattr(record, "data", None)
    if isinstance(data, dict) and "id" in data:
        name = "job_id" if data.get("name") == _JOB_TASK else "task_id"
        fields.setdefault(name, printable(str(data["id"]), _MAX_ID))
    return fields


class JobSuffixFilter(logging.Filter):
    """The filter of a handler that writes text. It drops no record. Install it behind the
    `PrintableFilter`."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Append job and worker to the message of a `record` that is about a job."""
        fields = fields_of(record)
        named = [f"{name}={fields[name]}" for name in ("job_id", "worker") if name in fields]
        suffix = f" [{' '.join(named)}]"
        if "job_id" in fields and not str(record.msg).endswith(suffix):
            record.msg, record.args = record.getMessage() + suffix, None
        return True


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
            **fields_of(record),
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


def use_text(logger: logging.Logger) -> None:
    """Let all handlers of `logger` name job and worker at the end of a line about a job."""
    for handler in logger.handlers:
        if not any(isinstance(each, JobSuffixFilter) for each in handler.filters):
            handler.addFilter(JobSuffixFilter())
