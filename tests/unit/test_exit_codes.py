"""A failed start says by its exit code whether a later one may succeed, and on this host."""

import pytest

from imagefleet.shared.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DeviceError,
    ImagefleetError,
)
from imagefleet.worker.process.exit_codes import ExitCode, exit_code_of


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BrokerUnavailable("Redis does not answer"), ExitCode.TEMPFAIL),
        (DeviceError("the devices failed on a batch"), ExitCode.UNAVAILABLE),
        (ConfigurationError("a setting is wrong"), ExitCode.CONFIG),
    ],
)
def test_a_failed_start_has_the_exit_code_of_its_cause(
    error: ImagefleetError, code: ExitCode
) -> None:
    assert exit_code_of(error) is code
