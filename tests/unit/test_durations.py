"""Durations as people write them."""

import pytest

from imagefleet.shared.text.durations import parse_duration


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("90s", 90), ("45m", 2_700), ("12h", 43_200), ("30d", 2_592_000), ("1.5", 1.5), (7, 7)],
)
def test_a_duration_is_seconds(value: object, seconds: float) -> None:
    assert parse_duration(value) == seconds


@pytest.mark.parametrize(
    "value", ["", "soon", "1_000", "٣", "-1", "1e3", "nan", "12 h", True, None, [], 10**400]
)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"must be|too long"):
        parse_duration(value)
