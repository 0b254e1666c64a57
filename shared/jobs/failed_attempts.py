"""Describe the failed attempts that a job's record keeps: on which worker, and why.

`failed_attempts.lua` writes them in the step that retries or requeues a job, or starts it again.
The module uses neither Redis nor devices.
"""

from collections.abc import Iterable
from typing import Final

from pydantic import ValidationError

from imagefleet.shared.errors import DeviceError
from imagefleet.shared.jobs.model import Model, Time
from imagefleet.shared.text.printable import printable

DEVICES_FAILED: Final = "devices_failed"
"""It is the code of an attempt whose devices failed, and whose worker was quarantined for it."""
WORKER_DIED: Final = "worker_died"
"""It is the code of an attempt whose worker died, hung, or lost its lease."""
MAX_FAILURE_CHARACTERS: Final = 300


class FailedAttempt(Model):
    """A failed attempt says which worker made it, and why it failed."""

    worker: str
    """The name has host, process id and a random part."""
    code: str
    """It is the code of an error, `devices_failed` or `worker_died`. With `device_error` the job
    failed alone, on devices that then generated a known image."""
    at: Time
    """It is a time in Unix seconds by the Redis server's clock."""
    message: str


def parse_failures(text: str) -> tuple[FailedAttempt, ...]:
    """Return the failed attempts in the field of a record. Damaged ones are left out."""
    found = []
    for line in text.splitlines():
        try:
            found.append(FailedAttempt.model_validate_json(line, extra="ignore"))
        except ValidationError:
            continue
    return tuple(found)


def failure_field(code: str, message: str) -> str:
    """Return what `transition.lua` takes as the field `failure`."""
    return f"{code} {printable(message, MAX_FAILURE_CHARACTERS)}"


def failed_alone(failures: Iterable[FailedAttempt]) -> list[FailedAttempt]:
    """Return the attempts in which the job failed alone on devices that pass their check."""
    return [each for each in failures if each.code == DeviceError.code]
