"""What both commands `doctor` share: the lines of a report, and the check of a store.

Input: the settings of a producer or worker. Output: findings, each a sentence that says what was
found or what to do.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.settings.settings import Settings
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.text.printable import mask_credentials, printable

_TEST_BYTES: Final = 1_000_000
_MAX_LINE: Final = 2_000

S = TypeVar("S", bound=Settings)


class Verdict(StrEnum):
    """What a check found."""

    OK = "ok"
    WARNING = "warn"  # a producer or worker runs all the same
    FAILURE = "FAIL"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    verdict: Verdict
    text: str

    def line(self, check: str) -> str:
        """Return the line of the report, safe for terminals and without passwords."""
        line = f"{self.verdict:<4}  {check:<9}  {self.text}"
        return printable(mask_credentials(line), _MAX_LINE)


def run_check(check: Callable[[S], Iterator[Finding]], settings: S) -> Iterator[Finding]:
    """Yield what `check` finds. An error that it raises is a failure."""
    try:
        yield from check(settings)
    except ImagefleetError as error:
        yield Finding(Verdict.FAILURE, str(error))
    except Exception as error:  # a report with a gap is better than none
        yield Finding(Verdict.FAILURE, f"{type(error).__name__}: {error}")


def check_variables(warnings: Iterator[str]) -> Iterator[Finding]:
    """Yield a warning for each misspelt variable. The values were checked when they were read."""
    found = list(warnings)
    yield from (Finding(Verdict.WARNING, warning) for warning in found)
    if not found:
        yield Finding(Verdict.OK, "all values are valid, and no variable is misspelt")


def check_storage(store: ObjectStore) -> Iterator[Finding]:
    """Write, read and delete 1 MB.

    Raises:
        ImagefleetError: it cannot be written or read.
    """
    store.check()
    key, data = f"check-{os.urandom(8).hex()}", os.urandom(_TEST_BYTES)
    try:
        started = time.perf_counter()
        store.put(key, data, "application/octet-stream")
        put_s = time.perf_counter() - started
        started = time.perf_counter()
        store.get(key)
        get_s = time.perf_counter() - started
    finally:
        undeleted = _delete(store, key)
    text = f"{store.url}: 1 MB is written in {put_s:.3f} s and read in {get_s:.3f} s"
    yield Finding(Verdict.OK, text)
    if undeleted is not None:
        text = f"cannot delete, which `delete` and `keep` need; {key} stays: {undeleted}"
        yield Finding(Verdict.WARNING, text)


def _delete(store: ObjectStore, key: str) -> ImagefleetError | None:
    try:
        store.delete(key)
    except ImagefleetError as error:
        return error
    return None
