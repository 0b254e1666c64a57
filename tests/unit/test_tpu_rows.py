"""`make tpu` fails for programs that a worker would start to compile and could not run."""

import pytest

from tools.tpu.rows import Account, Outcome, Row, fails

TOO_LARGE = Account(outcome=Outcome.TOO_LARGE, message="RESOURCE_EXHAUSTED", seconds=1)
REFUSED = Account(outcome=Outcome.REFUSED, message="NotImplementedError", seconds=1)
COMPILES = Account(outcome=Outcome.COMPILES, seconds=1)
SMALL = Row(model="sd14", host="v5e-8", program="step")
LARGE = Row(model="sdxl", host="v2-8", program="step")


@pytest.mark.parametrize(
    ("row", "result", "expected"),
    [
        (SMALL, COMPILES, False),
        (SMALL, REFUSED, True),
        (LARGE, REFUSED, True),
        (SMALL, TOO_LARGE, True),  # the memory check would have let it pass
        (LARGE, TOO_LARGE, False),
    ],
)
def test_a_program_may_be_too_large_only_if_the_memory_check_refuses_it(
    row: Row, result: Account, expected: bool
) -> None:
    assert fails(row, result) is expected
