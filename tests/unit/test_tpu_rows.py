"""`make tpu` fails for programs that a worker would start to compile and could not run."""

import pytest

from tools.tpu.rows import Account, Outcome, Row, fails, memory_need_of

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


@pytest.mark.parametrize(
    ("model", "devices_per_copy", "megabytes"),
    [
        ("sd14", 1, {"v2": 1061, "v3": 777, "v4": 401, "v5e": 402, "v5p": 379, "v6e": 359}),
        ("sd21", 1, {"v2": 1596, "v3": 1590, "v4": 952, "v5e": 842, "v5p": 642, "v6e": 781}),
        ("sdxl", 1, {"v4": 3809, "v5e": 1117, "v5p": 1119, "v6e": 1177}),
        ("sd14", 2, {"v5e": 998}),
        ("sdxl", 2, {"v5e": 2565}),
    ],
)
def test_the_memory_check_is_near_to_what_the_compiler_takes(
    model: str, devices_per_copy: int, megabytes: dict[str, int]
) -> None:
    """Megabytes of temporaries and code: of SDXL's step on v6e, else of the decoder. They are the
    most that a program of one image a device takes; docs/tpu.md has their source."""
    for generation, temporaries in megabytes.items():
        host = f"{generation}-8"
        need = memory_need_of(
            Row(model=model, host=host, program="decode", devices_per_copy=devices_per_copy)
        )
        compiled = need.weights + 1e6 * temporaries
        assert need.total == pytest.approx(compiled, rel=0.09), generation
