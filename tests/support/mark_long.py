"""Mark the tests of a written list as long, and refuse a list that names what is not there.

Input: the tests that pytest collected, and the list in `tests/long_tests`. `tests/conftest.py`
calls it before pytest selects by marker, so `-m long` and `-m 'not long'` divide all tests in two.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
"""The folder of all tests."""
FIRST: Final = "the first example"
"""Stands for the example of a test whose parameters are the first of each `parametrize`."""
EVERY: Final = "every test"
"""Stands for all tests of a module."""


@dataclass(frozen=True)
class Long:
    """Tests of one module that only `make long` runs."""

    why: str
    """What tries the same, or the greater part of it, in `make test`."""
    tests: Sequence[str]
    """Names: of a function with all its examples, `test_a`, or of one example, `test_a[7]`."""
    but: Sequence[str] = ()
    """The examples that stay in `make test`: full names, or `FIRST` for that of each function."""
    in_ci: bool = True
    """Whether `.ci/run` runs them. It leaves the longest to `make long` alone."""

    def names(self, test: "Test") -> bool:
        """Whether the test is one of these."""
        if test.name in self.but or (FIRST in self.but and test.is_first):
            return False
        return any(each in self.tests for each in (test.name, test.function, EVERY))


@dataclass(frozen=True)
class Test:
    """A test that pytest collected."""

    __test__ = False  # pytest would collect this class because of its name
    module: str
    """Its file below `tests`."""
    function: str
    name: str
    """The function's name with the example, as pytest prints it."""
    is_first: bool
    """Whether all its parameters are the first ones."""


def named_nowhere(long: Mapping[str, Sequence[Long]], tests: Iterable[Test]) -> list[str]:
    """Return the names in the list that no test has, of the modules that were collected."""
    names: dict[str, set[str]] = {}
    for test in tests:
        names.setdefault(test.module, {FIRST, EVERY}).update((test.name, test.function))
    return [
        f"{module}: {name}"
        for module, present in names.items()
        for each in long.get(module, ())
        for name in (*each.tests, *each.but)
        if name not in present
    ]


def mark_long(
    config: pytest.Config, items: Sequence[pytest.Item], long: Mapping[str, Sequence[Long]]
) -> None:
    """Mark the tests of the list as `long`, and those that `.ci/run` leaves out as `beyond_ci`.

    Raises:
        pytest.UsageError: the list names a test that its module does not have.
    """
    tests = [_test(item) for item in items]
    are_whole_modules = not any("::" in argument for argument in config.args)
    if are_whole_modules and (missing := named_nowhere(long, tests)):
        raise pytest.UsageError(
            "tests/long_tests names tests that do not exist: " + "; ".join(missing)
        )
    for item, test in zip(items, tests, strict=True):
        found = [each for each in long.get(test.module, ()) if each.names(test)]
        if found:
            item.add_marker("long")
        if not all(each.in_ci for each in found):
            item.add_marker("beyond_ci")


def _test(item: pytest.Item) -> Test:
    assert isinstance(item, pytest.Function)
    call = getattr(item, "callspec", None)
    return Test(
        module=item.path.relative_to(TESTS).as_posix(),
        function=item.originalname,
        name=item.name,
        is_first=call is not None and not any(call.indices.values()),
    )
