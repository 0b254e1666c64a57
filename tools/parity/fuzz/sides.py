"""Ask both sides for the images of drawn checkpoints: diffusers in a process of its own, and us.

Input: the names of cases. Output: their entries in the ledger.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from imagefleet.shared.errors import ImagefleetError
from tools.parity.fuzz.draft import Draft
from tools.parity.fuzz.draw import draw
from tools.parity.fuzz.ledger import Entry, Outcome, compare
from tools.parity.truth_process import TruthProcess

TRUTH: Final = "tools.parity.fuzz.truth"
"""This module answers what diffusers makes of a checkpoint."""
ONE_DEVICE: Final = "data=1"
"""It is a setting of a worker's mesh."""

_KEPT_CASES: Final = 20
"""Programs of so many cases are kept for those after them. Each takes memory: without a limit the
process grew to 19 GB."""


def ours(draft: Draft, cache_dir: Path, mesh: str = ONE_DEVICE) -> Outcome:
    """Return our images, or our error."""
    from tools.parity.fuzz.engine import generate

    try:
        return Outcome(images=generate(draft, cache_dir, mesh))
    except ImagefleetError as error:
        return Outcome(error=f"{type(error).__name__}: {error}")
    except Exception as error:
        return Outcome(error=f"{type(error).__name__}: {error}"[:500], crashed=True)


def run(
    cases: Sequence[str],
    truth: TruthProcess,
    folder: Path,
    cache_dir: Path,
    mesh: str = ONE_DEVICE,
) -> Iterator[tuple[Entry, Outcome]]:
    """Yield the entry of each case, and what diffusers answered. `mesh` is that of our side."""
    for number, case in enumerate(cases, 1):
        if number % _KEPT_CASES == 0:
            _forget_programs()
        place = folder / "case"
        draft = draw(place / "checkpoint", case)
        truth.ask(draft.describe())
        # If diffusers draws weights, ours must wait for them; otherwise both work at once.
        theirs = _outcome(truth.answer()) if draft.network else None
        mine = ours(draft, cache_dir, mesh)
        theirs = theirs or _outcome(truth.answer())
        yield compare(case, mine, theirs, tuple(draft.changes)), theirs
        shutil.rmtree(place)


def _forget_programs() -> None:
    import jax

    jax.clear_caches()


def _outcome(answer: dict[str, Any]) -> Outcome:
    if "error" in answer:
        return Outcome(error=answer["error"])
    return Outcome(images=np.load(answer["images"]))
