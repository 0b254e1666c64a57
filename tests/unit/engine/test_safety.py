"""The safety checker flags the images that diffusers' safety checker flags."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles, read_json
from imagefleet.worker.engine.checkpoint.weights import WeightMapping, require_complete
from imagefleet.worker.engine.contract.interface import ImageSpec, RunningBatch, Shape
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.networks.abstract_network import abstract_network
from imagefleet.worker.engine.networks.safety import (
    ImageProcessorConfig,
    SafetyChecker,
    SafetyConfig,
    preprocess_images,
)
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.mesh import Placement
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
    files = CheckpointFiles(SAFETY).open_weights(["safety_checker"])
    network = abstract_network(SafetyChecker, config)
    mapping = WeightMapping("safety_checker", network, files["safety_checker"])
    require_complete([mapping])
    weights = mapping.load(np.dtype(np.float32), Placement.of(1))
    loaded: SafetyChecker = nnx.merge(nnx.graphdef(network), weights)
    return loaded


def test_images_are_embedded_as_in_diffusers(
    checker: SafetyChecker, answers: dict[str, NDArray[Any]]
) -> None:
    ours = checker.embed(jnp.asarray(np.moveaxis(answers["prepared"], 1, -1)))
    assert worst(ours, answers["embeds"]) < 5e-6


def test_the_same_images_are_flagged_as_in_diffusers(
    checker: SafetyChecker, answers: dict[str, NDArray[Any]]
) -> None:
    """Two of eight images are flagged: one for a concept, one only by the special-care bonus.

    A third image is as similar to its concept as the second, but has no bonus.
    """
    flagged = jax.jit(checker)(answers["pictures"])
    assert sorted(answers["flagged"]) == [False] * 6 + [True] * 2
    np.testing.assert_array_equal(flagged, answers["flagged"])


@pytest.mark.parametrize(("height", "width"), [(512, 512), (512, 768), (64, 64), (224, 300)])
def test_images_are_resized_as_by_pillow(height: int, width: int) -> None:
    image = np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
    config = ImageProcessorConfig(shortest_edge=224, crop=224, mean=(0, 0, 0), deviation=(1, 1, 1))
    rows, columns = (int(224 * side / min(height, width)) for side in (height, width))
    resized = Image.fromarray(image).resize((columns, rows), Image.Resampling.BICUBIC)
    top, left = (rows - 224) // 2, (columns - 224) // 2
    theirs = np.asarray(resized)[top : top + 224, left : left + 224].astype(int)
    ours = np.asarray(preprocess_images(jnp.asarray(image[None]), config))[0] * 255
    assert np.abs(ours - theirs).max() <= 1.001


@pytest.mark.parametrize(
    ("config", "preprocessor", "message"),
    [
        ({"projection_dim": "wide"}, {}, "projection_dim='wide'"),
        ({"vision_config": {"hidden_act": "relu"}}, {}, "hidden_act='relu'"),
        ({}, {"size": {"longest_edge": 224}}, "size={'longest_edge': 224}"),
        ({}, {"resample": 2}, r"resample=2 \(supported: 3\)"),
        ({}, {"do_rescale": False}, "do_rescale=False"),
        ({}, {"rescale_factor": 0.5}, "rescale_factor=0.5"),
        (
            {},
            {"crop_size": 112},
            r"image_size=224 must equal crop_size=112 of the feature extractor",
        ),
    ],
)
def test_the_error_names_an_unsupported_field(
    config: dict[str, Any], preprocessor: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        SafetyConfig.from_json(config, preprocessor)


@pytest.mark.parametrize("threshold", [-2.0, 2.0])
def test_a_flagged_image_is_black_and_reported(
    checkpoint: Path, cache_dir: Path, threshold: float
) -> None:
    add_checker(checkpoint, threshold)
    running_batch = _generating(checkpoint, cache_dir)
    assert running_batch.flagged() == (threshold < 0, threshold < 0)
    assert bool(running_batch.images().any()) == (threshold > 0)


def test_a_checker_that_is_turned_off_flags_nothing(checkpoint: Path, cache_dir: Path) -> None:
    add_checker(checkpoint, -2.0)
    running_batch = _generating(checkpoint, cache_dir, options=ModelOptions(safety_checker=False))
    assert running_batch.flagged() == (False, False)
    assert running_batch.images().any()


def test_a_second_config_of_the_images_is_refused_unless_the_checker_is_off(
    checkpoint: Path,
) -> None:
    add_checker(checkpoint, 2.0)
    (checkpoint / "feature_extractor" / "processor_config.json").write_text("{}")
    files = CheckpointFiles(checkpoint)
    with pytest.raises(CheckpointError, match=r"^feature_extractor/processor_config\.json: transf"):
        Configs.read(files)
    assert Configs.read(CheckpointFiles(checkpoint, ["safety_checker"])).safety is None


def add_checker(checkpoint: Path, threshold: float) -> None:
    """Add a safety checker with this threshold for every concept."""
    for part in ("safety_checker", "feature_extractor"):
        shutil.copytree(SAFETY / part, checkpoint / part)
    index = checkpoint / "model_index.json"
    has = {
        "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
        "feature_extractor": ["transformers", "CLIPImageProcessor"],
    }
    index.write_text(json.dumps(json.loads(index.read_text()) | has))
    file = checkpoint / "safety_checker" / "model.safetensors"
    tensors = load_file(file)
    tensors["concept_embeds_weights"][:] = threshold
    save_file(tensors, file)


def _generating(
    checkpoint: Path, cache_dir: Path, options: ModelOptions | None = None
) -> RunningBatch:
    engine = load_engine(str(checkpoint), devices=2, cache_dir=cache_dir, options=options)
    engine.warm()
    spec = ImageSpec(prompt="a red circle", num_inference_steps=2, guidance_scale=3.0)
    return engine.start_batch([spec, replace(spec, seed=1)], Shape(height=32, width=32))
