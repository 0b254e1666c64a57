"""A start of minutes says again and again what it does."""

import logging

import pytest

from imagefleet.worker.engine.compile.start_log import StartLog
from tests.support.processes import until


def test_a_stage_is_logged_at_once_and_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    start_log = StartLog(every_s=0.01)
    with start_log.stage("compiling program 2 of 6: 64x64/step"):
        assert caplog.messages == ["compiling program 2 of 6: 64x64/step, 0 s so far"]
        until(lambda: len(caplog.messages) > 2)
    assert caplog.messages[1] == "still compiling program 2 of 6: 64x64/step, 0 s so far"
    ended = len(caplog.messages)
    with start_log.stage("running"):
        until(lambda: len(caplog.messages) > ended + 2)
    assert all("running" in message for message in caplog.messages[ended:])


def test_a_stage_that_fails_is_no_longer_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(ValueError, match="no"), StartLog(every_s=60).stage("reading the weights"):
        raise ValueError("no")
    assert caplog.messages == ["reading the weights, 0 s so far"]
