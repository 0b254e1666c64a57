"""Each drawn checkpoint makes the images of diffusers, or is refused.

`make parity` stores what diffusers makes of these checkpoints, `make parity-fuzz` draws others.
"""

import json
from pathlib import Path
from typing import Final

import pytest
from safetensors.numpy import load_file

from tests.unit.engine.parity import FOLDER
from tools.parity.fuzz.draw import draw
from tools.parity.fuzz.ledger import FAILURES, Entry, Outcome, Verdict, compare
from tools.parity.fuzz.named_cases import NAMED_CASES
from tools.parity.fuzz.sides import ours

IMAGES: Final = load_file(FOLDER / "fuzz.safetensors")
ERRORS: Final[dict[str, str]] = json.loads((FOLDER / "fuzz_errors.json").read_text())
REFUSED: Final = {
    "2 no skip_prk_steps, PNDM chosen": "IMAGEFLEET_SCHEDULER='pndm' cannot run this model; choose",
    "2 LMS reads sigma_max with Karras": "LMSDiscreteScheduler does not run here with sigma_max=10",
    "13 v_pred without such a scheduler": "so its model needs prediction_type = v_prediction",
    "5 shards with names of 2022": "is a name of 2022, which diffusers does not read in shards",
    "6 use_attention_mask": "text_encoder/config.json: use_attention_mask=True",
    "9 a longer model_max_length": "model_max_length=100 must be 2 to 77",
    "11 UNetMotionModel": "unet is ['diffusers', 'UNetMotionModel']",
    "11 the text encoder projects": "text_encoder is ['transformers', 'CLIPTextModelWithProjec",
    "12 DDPM": "'DDPMScheduler', which this engine does not have; set IMAGEFLEET_SCHEDULER",
}
"""Named cases that are refused, and the end of the error. All others make equal images."""


def _compare(case: str, folder: Path, cache_dir: Path) -> Entry:
    draft = draw(folder / "checkpoint", case)
    theirs = Outcome(images=IMAGES.get(case), error=ERRORS.get(case, ""))
    return compare(case, ours(draft, cache_dir), theirs, tuple(draft.changes))


@pytest.mark.parametrize("case", NAMED_CASES)
def test_a_named_checkpoint_makes_equal_images_or_is_refused_in_one_sentence(
    case: str, tmp_path: Path, cache_dir: Path
) -> None:
    entry = _compare(case, tmp_path, cache_dir)
    if case in REFUSED:
        assert entry.verdict in (Verdict.REFUSED, Verdict.REFUSED_BY_BOTH), entry.describe()
        assert REFUSED[case] in entry.ours
    else:
        assert entry.verdict is Verdict.EQUAL, entry.describe()


@pytest.mark.parametrize("case", [case for case in [*IMAGES, *ERRORS] if case not in NAMED_CASES])
def test_a_drawn_checkpoint_makes_equal_images_or_is_refused(
    case: str, tmp_path: Path, cache_dir: Path
) -> None:
    entry = _compare(case, tmp_path, cache_dir)
    assert entry.verdict not in FAILURES, entry.describe()


def test_the_truths_are_of_these_cases_and_many_have_images() -> None:
    assert NAMED_CASES.keys() <= IMAGES.keys() | ERRORS.keys()
    assert len(IMAGES) > 50
