"""The structure of the code stays within limits.

Each limit is the number that the code has reached. A limit may be lowered at any time. Who raises
one, for a new room or a new family of models, says in the commit why the code needs it.
"""

from pathlib import Path
from typing import Any

import pytest

from tools.structure import measure

ADVICE = {
    "packages": "Put the new module into the package of its subject.",
    "arrows": "Move what is imported to the package that it belongs to, or pass it as an argument.",
    "arrows back up": "Move what both packages need below them, and declare the layers of all "
    "packages in pyproject.toml.",
    "packages without a layer": "Name each package in the layers of pyproject.toml.",
    "circles of packages": "Move what both sides need to a module of its own, below them.",
    "circles of modules": "Move what both sides need to a module of its own, below them.",
    "classes in the longest inheritance": "Let one object hold the other, or write one class.",
    "functions, longest": "Make a function of each stage.",
    "files over 300 lines": "Split the file by its concerns, but not into parents of a class.",
    "files over 400 lines": "Split the file by its concerns.",
    "share without a verb, %": "Write sentences with a subject and a verb; "
    "`python -m tools.structure --verbose` lists the docstrings without one.",
    "attribute docstrings without a verb": "Write sentences with a subject and a verb; "
    "`python -m tools.structure --verbose` lists the docstrings without one.",
}
IN_EACH_FOLDER = {
    "arrows back up": 0,
    "packages without a layer": 0,
    "circles of packages": 0,
    "circles of modules": 0,
    "classes in the longest inheritance": 2,
}
OF_FOLDERS = {
    "producer": {"packages": 8, "arrows": 16},
    "shared": {"packages": 9, "arrows": 24},
    "worker": {"packages": 15, "arrows": 47},
    "worker/engine": {"packages": 14, "arrows": 47},
    "producer/gateway": {"packages": 19, "arrows": 77},
}
IN_TOTAL = {
    "functions, longest": 70,
    "files over 300 lines": 3,
    "files over 400 lines": 0,
    "share without a verb, %": 4.0,
    "attribute docstrings without a verb": 81,
}
LIMITS = [
    (folder, figure, most)
    for folder, own in OF_FOLDERS.items()
    for figure, most in {**own, **IN_EACH_FOLDER}.items()
] + [("total", figure, most) for figure, most in IN_TOTAL.items()]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return measure(Path(__file__).parents[2])


@pytest.mark.parametrize(("folder", "figure", "most"), LIMITS)
def test_a_figure_is_within_its_limit(
    report: dict[str, Any], folder: str, figure: str, most: float
) -> None:
    figures = report[folder]
    value = figures[figure]
    assert value is not None, f"{folder}: no layers are declared. {ADVICE[figure]}"
    assert value <= most, (
        f"{folder}: the figure \u201c{figure}\u201d is {value}, and its limit is {most}. "
        f"{_where(figures, figure)}{ADVICE[figure]}"
    )


def _where(figures: dict[str, Any], figure: str) -> str:
    """Return the places behind a figure as a sentence, or nothing if it has none."""
    if figure == "arrows":
        places = figures["arrows of one import at"]
        return f"A single import makes each of these arrows: {'; '.join(places)}. "
    places = figures.get(f"{figure} at", "")
    text = places if isinstance(places, str) else "; ".join(places)
    return f"See {text}. " if text else ""
