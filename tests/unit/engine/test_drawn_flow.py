"""Checkpoints of flow models that `make parity-fuzz` draws are read, or refused.

That command compares their images with those of diffusers.
"""

from pathlib import Path
from typing import Final

import pytest

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.loading.read_model import ModelSetup
from imagefleet.worker.engine.options.model_options import ModelOptions
from tools.parity.fuzz.draw import FLUX1, FLUX2_KLEIN, STABLE_DIFFUSION_3, Z_IMAGE, draw

SEEDS: Final = range(60)
SOLVERS: Final = ("dpmsolver++", "unipc")
FAMILIES: Final = pytest.mark.parametrize(
    "family", [Z_IMAGE, FLUX2_KLEIN, FLUX1, STABLE_DIFFUSION_3]
)


def _files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@FAMILIES
def test_a_seed_draws_the_same_files_and_the_same_job_again(family: str, tmp_path: Path) -> None:
    once, again = (draw(tmp_path / name, f"{family}3") for name in ("once", "again"))
    assert _files(once.folder) == _files(again.folder)
    assert (once.job, once.changes) == (again.job, again.changes)
    other = draw(tmp_path / "other", f"{family}4")
    assert (other.job, other.changes) != (once.job, once.changes)


@FAMILIES
def test_drawn_configs_are_read_or_refused_with_the_file_that_is_wrong(
    family: str, tmp_path: Path
) -> None:
    read, refusals = 0, []
    for seed in SEEDS:
        draft = draw(tmp_path / str(seed), f"{family}{seed}")
        side = draft.job.side or 32
        try:
            setup = ModelSetup.read(draft.folder, [Shape(height=side, width=side)], ModelOptions())
        except CheckpointError as error:
            refusals.append(str(error))
        else:
            # The pipelines of FLUX have no other sampler on the files of solvers.
            is_solvers = family in (FLUX2_KLEIN, FLUX1) and setup.default_scheduler in SOLVERS
            assert ("euler" in setup.schedulers(4)) is not is_solvers
            read += 1
    assert min(read, len(refusals)) > len(SEEDS) // 6
    named = ("transformer", "text_encoder", "vae", "scheduler", "tokenizer", "model_index")
    assert [each for each in refusals if not any(name in each for name in named)] == []


@FAMILIES
@pytest.mark.parametrize("seed", range(4))
def test_drawn_jobs_stay_within_what_the_fuzzer_compiles(
    family: str, tmp_path: Path, seed: int
) -> None:
    job = draw(tmp_path / "drawn", f"{family}{seed}").job
    assert 1 <= job.steps <= 4
    assert len(job.prompts) == (2 if family == FLUX2_KLEIN or job.strength is None else 1)
