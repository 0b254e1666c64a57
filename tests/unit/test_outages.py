"""A wait with a timeout ends in time, also if Redis hangs."""

import threading
import time

import pytest

from imagefleet.producer.connection import outages
from imagefleet.producer.connection.outages import OutageTolerance, deadline_of
from imagefleet.shared.errors import BrokerUnavailable, InvalidRequest, ResultTimeout


def test_a_read_that_hangs_ends_with_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "GRACE_S", 0.01)
    released = threading.Event()

    def hang() -> str:
        released.wait(60)
        return "too late"

    with pytest.raises(BrokerUnavailable, match="did not answer before the timeout"):
        OutageTolerance(time.monotonic() + 0.01).read(hang)
    released.set()


def test_an_answer_and_an_error_pass_through() -> None:
    for deadline in (float("inf"), time.monotonic() + 60, time.monotonic() - 1):
        tolerance = OutageTolerance(deadline)
        assert tolerance.read(lambda: "answer") == "answer"
        with pytest.raises(ResultTimeout, match="is still queued"):
            tolerance.read(_raise_timeout)


def _raise_timeout() -> str:
    """Raise an error that is a `TimeoutError`, as the wait for the thread."""
    raise ResultTimeout("job a is still queued")


@pytest.mark.parametrize("timeout", ["5", float("nan"), [1]])
def test_a_timeout_that_is_no_number_is_refused(timeout: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^timeout=.*: must be a number of seconds$"):
        deadline_of(timeout)  # type: ignore[arg-type]
