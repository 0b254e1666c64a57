"""The safety checker's verdicts are those of diffusers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.build import abstract
from imagefleet.worker.engine.checkpoint.files import TensorFiles, read_json
from imagefleet.worker.engine.checkpoint.weights import WeightMapping, require_complete
from imagefleet.worker.engine.interface import ImageSpec, Rendering, Shape
from imagefleet.worker.engine.load import load_engine
from imagefleet.worker.engine.mesh import Placement
from imagefleet.worker.engine.models.safety import (
    PictureConfig,
    SafetyChecker,
    SafetyConfig,
    prepared,
)
from tests.unit.engine.parity import FOLDER, worst

SAFETY = FOLDER / "safety"


@pytest.fixture(scope="module")
def answers() -> dict[str, NDArray[Any]]:
    return dict(load_file(SAFETY / "expected.safetensors"))


@pytest.fixture(scope="module")
def checker() -> SafetyChecker:
    config = SafetyConfig.from_json(
        read_json(SAFETY / "safety_checker" / "config.json"),
        read_json(SAFETY / "feature_extractor" / "preprocessor_config.json"),
    )
    network = abstract(SafetyChecker, config)
    plan = WeightMapping("safety_checker", network, TensorFiles(SAFETY / "safety_checker"))
    require_complete([plan])
    weights = plan.load(np.dtype(np.float32), Placement.of(1))
    made: SafetyChecker = nnx.merge(nnx.graphdef(network), weights)
    return made


def test_pictures_are_read_as_diffusers_reads_them(
    checker: SafetyChecker, answers: dict[str, NDArray[Any]]
) -> None:
    ours = checker.embed(np.moveaxis(answers["prepared"], 1, -1))
    assert worst(ours, answers["embeds"]) < 5e-6


def test_the_verdicts_are_those_of_diffusers(
    checker: SafetyChecker, answers: dict[str, NDArray[Any]]
) -> None:
    """Of eight pictures one is flagged for a concept, one because special care lowers the bar; a
    third, as near to its concept as the second, is not."""
    verdicts = jax.jit(checker)(answers["pictures"])
    assert sorted(answers["flagged"]) == [False] * 6 + [True] * 2
    np.testing.assert_array_equal(verdicts, answers["flagged"])


@pytest.mark.parametrize(("height", "width"), [(512, 512), (512, 768), (64, 64), (224, 300)])
def test_pictures_are_sized_as_pillow_sizes_them(height: int, width: int) -> None:
    picture = np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
    config = PictureConfig(shortest_edge=224, crop=224, mean=(0, 0, 0), deviation=(1, 1, 1))
    rows, columns = (int(224 * side / min(height, width)) for side in (height, width))
    sized = Image.fromarray(picture).resize((columns, rows), Image.Resampling.BICUBIC)
    top, left = (rows - 224) // 2, (columns - 224) // 2
    theirs = np.asarray(sized)[top : top + 224, left : left + 224].astype(int)
    ours = np.asarray(prepared(picture[None], config))[0] * 255
    assert np.abs(ours - theirs).max() <= 1.001


@pytest.mark.parametrize(
    ("config", "preprocessor", "named"),
    [
        ({"projection_dim": "wide"}, {}, "projection_dim='wide'"),
        ({"vision_config": {"hidden_act": "relu"}}, {}, "hidden_act='relu'"),
        ({}, {"size": {"longest_edge": 224}}, "size={'longest_edge': 224}"),
        ({}, {"resample": 2}, r"resample=2 \(implemented: 3\)"),
        ({}, {"crop_size": 112}, r"image_size=224 \(the feature extractor makes 112\)"),
    ],
)
def test_another_checker_is_refused_by_field(
    config: dict[str, Any], preprocessor: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        SafetyConfig.from_json(config, preprocessor)


@pytest.mark.parametrize("threshold", [-2.0, 2.0])
def test_a_flagged_picture_is_black_and_said_so(
    checkpoint: Path, cache_dir: Path, threshold: float
) -> None:
    give_checker(checkpoint, threshold)
    rendering = _rendering(checkpoint, cache_dir)
    assert rendering.flagged() == (threshold < 0, threshold < 0)
    assert bool(rendering.pictures().any()) == (threshold > 0)


def test_a_checker_that_is_not_wanted_says_nothing(checkpoint: Path, cache_dir: Path) -> None:
    give_checker(checkpoint, -2.0)
    rendering = _rendering(checkpoint, cache_dir, safety_checker=False)
    assert rendering.flagged() == (False, False)
    assert rendering.pictures().any()


def give_checker(checkpoint: Path, threshold: float) -> None:
    """Every concept is met at this cosine."""
    for part in ("safety_checker", "feature_extractor"):
        shutil.copytree(SAFETY / part, checkpoint / part)
    index = checkpoint / "model_index.json"
    has = {"safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"]}
    index.write_text(json.dumps(json.loads(index.read_text()) | has))
    file = checkpoint / "safety_checker" / "model.safetensors"
    tensors = load_file(file)
    tensors["concept_embeds_weights"][:] = threshold
    save_file(tensors, file)


def _rendering(checkpoint: Path, cache_dir: Path, **settings: bool) -> Rendering:
    engine = load_engine(str(checkpoint), devices=2, cache_dir=cache_dir, **settings)  # type: ignore[arg-type]
    engine.warm()
    spec = ImageSpec(prompt="a red circle", num_inference_steps=2, guidance_scale=3.0)
    return engine.render([spec, replace(spec, seed=1)], Shape(height=32, width=32))
