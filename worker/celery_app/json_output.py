"""Write as JSON what a worker prints beside its log: warnings of Python, and what Celery says."""

import logging
import os
import warnings
from typing import Any

from celery.apps import worker as celery_worker

from imagefleet.shared.text.printable import mask_credentials, printable
from imagefleet.worker.process.log_format import JsonFormatter

_MAX_CHARACTERS = 4_000
_FORMATTER = JsonFormatter()
_STANDARD_ERROR = 2


def print_json() -> None:
    """Let all that this process prints from now on be lines of JSON."""
    warnings.showwarning = _show_warning
    celery_worker.safe_say = _say


def say_json(text: str, level: int = logging.INFO, logger: str = "imagefleet") -> None:
    """Write one line to standard error. A signal handler may call it: it takes no lock."""
    message = printable(mask_credentials(text), _MAX_CHARACTERS)
    record = logging.LogRecord(logger, level, "", 0, message, None, None)
    os.write(_STANDARD_ERROR, f"{_FORMATTER.format(record)}\n".encode())


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    text = " ".join(str(message).split())
    say_json(f"{category.__name__}: {text}", logging.WARNING, "py.warnings")


def _say(text: str, _: object = None) -> None:
    say_json(text, logger="celery")
