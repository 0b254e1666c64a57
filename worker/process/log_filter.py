"""Make every line of a worker's log safe to read.

Input: log records. Output: the same records, with control characters escaped and credentials
masked: messages quote task names, list keys, addresses and errors that anybody may have written.
"""

import logging
from typing import Final

from imagefleet.shared.text.printable import mask_credentials, printable, printable_lines

_MAX_CHARACTERS: Final = 4_000
"""A longer message, or line of a traceback, is cut. Celery quotes whole requests."""
_MAX_TRACEBACK: Final = 20_000
_FORMATTER: Final = logging.Formatter()


class PrintableFilter(logging.Filter):
    """The filter of a handler. It drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the message and the traceback of `record` by printable text."""
        record.msg = printable(mask_credentials(_message(record)), _MAX_CHARACTERS)
        record.args = None
        if record.exc_info and not record.exc_text:
            record.exc_text = _FORMATTER.formatException(record.exc_info)
        if record.exc_text:
            # An error may quote a value of any length, before which its traceback stands.
            text = "\n".join(line[:_MAX_CHARACTERS] for line in record.exc_text.split("\n"))
            record.exc_text = printable_lines(mask_credentials(text[-_MAX_TRACEBACK:]))
        return True


def add_filter(logger: logging.Logger) -> None:
    """Add the filter to all handlers of `logger`. They then write printable text only."""
    for handler in logger.handlers:
        if not any(isinstance(each, PrintableFilter) for each in handler.filters):
            handler.addFilter(PrintableFilter())


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # the arguments do not fit the format
        return f"{record.msg!r} cannot be formatted: {type(error).__name__}"
