"""The list of long tests names files that exist, and leaves each product module a short test."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grimp

from tests.long_tests import LONG
from tests.support.mark_long import EVERY, FIRST, TESTS, Long, Test, named_nowhere
from tests.support.processes import ROOT

PROCESSES: Final = ("imagefleet.producer.__main__", "imagefleet.worker.__main__")
"""Modules that short tests start as processes: test_cli.py, test_worker_process.py."""


def _example(function: str, parameter: str, *, is_first: bool = False) -> Test:
    name = f"{function}[{parameter}]"
    return Test(module="unit/test_x.py", function=function, name=name, is_first=is_first)


FIRST_EXAMPLE: Final = _example("test_a", "1", is_first=True)
SECOND_EXAMPLE: Final = _example("test_a", "2")


def test_a_function_stands_for_all_its_examples_but_those_that_stay() -> None:
    examples = (FIRST_EXAMPLE, SECOND_EXAMPLE, _example("test_b", "1", is_first=True))
    for long, expected in (
        (Long("", ["test_a"]), [True, True, False]),
        (Long("", ["test_a[2]"]), [False, True, False]),
        (Long("", ["test_a"], but=[FIRST]), [False, True, False]),
        (Long("", ["test_a"], but=["test_a[2]"]), [True, False, False]),
        (Long("", [EVERY]), [True, True, True]),
    ):
        assert [long.names(example) for example in examples] == expected


def test_a_name_that_no_test_has_is_found_in_modules_that_were_collected() -> None:
    long = {
        "unit/test_x.py": [Long("", ["test_a", "test_a[3]", "test_c"], but=["test_a[2]", FIRST])],
        "unit/test_y.py": [Long("", ["test_d"])],
    }
    missing = named_nowhere(long, [FIRST_EXAMPLE, SECOND_EXAMPLE])
    assert missing == ["unit/test_x.py: test_a[3]", "unit/test_x.py: test_c"]


def test_the_modules_of_the_list_exist_and_each_entry_says_why() -> None:
    assert [module for module in LONG if not (TESTS / module).is_file()] == []
    assert all(each.why and each.tests for entries in LONG.values() for each in entries)


def test_continuous_integration_leaves_out_what_is_marked_and_no_more() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    assert "make long LONG='long and not beyond_ci'" in run
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert [marker.partition(":")[0] for marker in options["markers"]] == ["long", "beyond_ci"]


def test_every_product_module_is_loaded_by_a_module_with_short_tests() -> None:
    graph = grimp.build_graph("imagefleet", cache_dir=None)
    short = [
        path
        for path in TESTS.rglob("test_*.py")
        if not any(EVERY in each.tests for each in LONG.get(path.relative_to(TESTS).as_posix(), ()))
    ]
    loaded = {*PROCESSES, *(name for path in short for name in _imported(path))} & graph.modules
    reached = loaded.union(*(graph.find_upstream_modules(name) for name in loaded))
    packages = {name for name in graph.modules if graph.find_children(name)}
    assert graph.modules - packages - reached == set()


def _imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, and what may be modules: names of packages."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
