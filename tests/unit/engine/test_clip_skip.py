"""Jobs that skip other numbers of layers of the text encoders share a batch and its programs.

`tools/parity/clip_skip.py` wrote diffusers' states; `test_pipeline` compares whole images.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.contract.interface import ImageSpec, Shape
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.families.stable_diffusion.pipeline_index import PIPELINES
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from tests.unit.engine.parity import (
    FOLDER,
    PROMPTS,
    SPEC,
    Oracle,
    by_encoder,
    load_older,
    token_ids,
    worst,
)

NATIVE: Final = Shape(height=32, width=32)
SKIPS: Final = (1, 2)
TOLERANCE: Final = 5e-6
"""As in `test_models`."""


@pytest.fixture(scope="module")
def answers() -> dict[str, NDArray[Any]]:
    return load_file(FOLDER / "clip_skips.safetensors")


@pytest.fixture(scope="module")
def engine(cache_dir: Path) -> DiffusionEngine:
    """Eight devices with one slot each."""
    loaded = load_older(cache_dir, devices=8, per_device_batch=1, max_num_inference_steps=20)
    loaded.warm()
    return loaded


def test_states_that_skip_layers_equal_those_of_diffusers(
    oracle: Oracle, answers: dict[str, NDArray[Any]]
) -> None:
    """Slots with different `clip_skip` are encoded together, and one skips no layer."""
    name = oracle.files.folder.name
    negatives = ["red", "blue"] if name == "xl" else ["", "blue"]
    pairs = [list(pair) for pair in zip(negatives, PROMPTS[:2], strict=True)]
    tokens = token_ids(oracle.load_tokenizer(), [*pairs, *pairs, pairs[0]])
    ours = jax.jit(oracle.denoiser.prompt_encoder)(
        oracle.weights.text,
        by_encoder(tokens),
        np.ones(5, bool),
        np.array([1, 1, 2, 2, 0], np.int32),
    )
    for slot, skip in enumerate((1, 1, 2, 2)):
        row = slot % 2
        negative, prompt = answers[f"{name}|negative.{skip}"], answers[f"{name}|text.{skip}"]
        assert worst(ours.hidden[slot, 1], prompt[row]) < TOLERANCE
        assert worst(ours.hidden[slot, 0], negative[row]) < TOLERANCE
        if name == "xl":
            assert ours.pooled is not None
            for index, kind in enumerate(("negative_pooled", "pooled")):
                pooled = answers[f"xl|{kind}.{skip}"][row]
                assert worst(ours.pooled[slot, index], pooled) < TOLERANCE
    assert worst(ours.hidden[4, 1], oracle.answers["text"][0]) < TOLERANCE
    assert worst(ours.hidden[0, 1], oracle.answers["text"][0]) > 0.01


def _specs(skips: Sequence[int | None]) -> list[ImageSpec]:
    return [replace(SPEC, clip_skip=skip) for skip in skips]


def test_jobs_with_other_clip_skips_share_a_batch_and_each_is_bit_equal_to_itself_alone(
    engine: DiffusionEngine,
) -> None:
    specs, before = _specs([None, 1, 2, 1, None, 2, 1, 2]), engine.recompiles
    together = engine.start_batch(specs, NATIVE).images()
    assert len({image.tobytes() for image in together}) == 3
    for spec, image in zip(specs, together, strict=True):
        alone = engine.start_batch([spec], NATIVE).images()[0]
        np.testing.assert_array_equal(alone, image, err_msg=str(spec.clip_skip))
    assert engine.recompiles == before


def test_jobs_with_other_clip_skips_share_a_stream(cache_dir: Path) -> None:
    loaded = load_older(cache_dir, devices=1, per_device_batch=3, max_num_inference_steps=20)
    (stream,) = loaded.open_streams()
    specs = _specs([None, *SKIPS])
    alone = []
    for spec in specs:
        stream.start(0, spec, NATIVE)
        while not stream.step():
            pass
        alone.append(stream.finish(0)().pixels)
    for slot, spec in enumerate(specs):
        stream.start(slot, spec, NATIVE)
    while not stream.step():
        pass
    for slot, expected in enumerate(alone):
        # Several slots share a device, so the promise is one level.
        assert np.abs(stream.finish(slot)().pixels.astype(int) - expected).max() <= 1
    assert len({image.tobytes() for image in alone}) == 3
    assert loaded.recompiles == 0


@pytest.mark.parametrize(("base", "most"), [("older", 2), ("newer", 2), ("xl", 2)])
def test_the_limit_is_that_of_diffusers(base: str, most: int) -> None:
    """Two layers of Stable Diffusion may be skipped, and of SDXL all but one of three."""
    configs = Configs.read(CheckpointFiles(FOLDER / base))
    assert configs.max_clip_skip == most
    editing = PIPELINES["StableDiffusionInstructPix2PixPipeline"]
    assert replace(configs, pipeline=editing).max_clip_skip == 0


def test_a_clip_skip_beyond_the_layers_is_refused(engine: DiffusionEngine) -> None:
    assert engine.info.max_clip_skip == 2
    for wrong in (3, -1):
        with pytest.raises(ValueError, match=rf"clip_skip={wrong} is out of range; 0 to 2 are"):
            engine.start_batch(_specs([wrong]), NATIVE)
