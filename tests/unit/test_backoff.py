"""The backoff grows up to its bound, and its jitter stays within the upper half."""

import pytest

from imagefleet.shared.process.backoff import Jitter, backoff_s


def test_backoff_doubles_up_to_its_maximum() -> None:
    pauses = [backoff_s(n, min_s=1.0, max_s=60.0, jitter=Jitter.NONE) for n in range(8)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_another_factor_may_be_given() -> None:
    pauses = [backoff_s(n, min_s=1.0, max_s=3.0, factor=1.5, jitter=Jitter.NONE) for n in range(4)]
    assert pauses == [1, 1.5, 2.25, 3]


@pytest.mark.parametrize(("retries", "longest"), [(0, 1.0), (3, 8.0), (20, 60.0)])
def test_equal_jitter_draws_from_the_upper_half(retries: int, longest: float) -> None:
    drawn = [backoff_s(retries, min_s=1.0, max_s=60.0) for _ in range(100)]
    assert all(longest / 2 <= pause <= longest for pause in drawn)
    assert len(set(drawn)) > 1


def test_backoff_does_not_overflow_after_very_many_retries() -> None:
    assert backoff_s(1_000_000, min_s=1.0, max_s=300.0, jitter=Jitter.NONE) == 300
