"""How many rows of a run may be rejected."""

import numpy as np
import pytest

from imagefleet.producer.bulk.rejected_limit import RejectedLimit
from imagefleet.shared.errors import InvalidRequest


@pytest.mark.parametrize(
    ("limit", "rejected", "rows", "is_refused"),
    [
        (0, 0, 10, False),
        (0, 1, 10, True),
        ("3", 3, 10, False),
        (np.int64(3), 4, 10, True),
        ("0%", 1, 1_000_000_000, True),
        ("2%", 2, 100, False),
        ("2%", 3, 100, True),
        ("2%", 1, 49, True),
        ("0.1%", 1, 1_000, False),
        ("33.3%", 333, 1_000, False),
        ("33.3%", 334, 1_000, True),
        ("100%", 9, 9, False),
    ],
)
def test_a_number_or_a_share_of_all_rows_may_be_rejected(
    limit: object, rejected: int, rows: int, is_refused: bool
) -> None:
    assert (RejectedLimit.parse(limit).exceeded(rejected, rows) is not None) == is_refused


@pytest.mark.parametrize(
    "limit", [-1, 1.5, True, "", "%", "2 %", "-1%", "100.1%", "2%%", None, "1e3"]
)
def test_other_limits_are_refused(limit: object) -> None:
    with pytest.raises(InvalidRequest, match=r"max_rejected=.*from 0% to 100%"):
        RejectedLimit.parse(limit)
