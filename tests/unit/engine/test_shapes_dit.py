"""The second bundled model draws what prompts say, and the same as PyTorch diffusers does."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.loading.bundled_models import bundled_folder
from imagefleet.worker.engine.schedulers.registry import step_table
from tests.support.judge import judge, score
from tests.unit.engine.flow_parity import FlowOracle
from tests.unit.engine.parity import FOLDER
from tools.parity.shapes_dit_case import GUIDANCE, PROMPTS, STEPS
from tools.train_shapes.captions import read_caption


@pytest.fixture(scope="module")
def truth() -> dict[str, NDArray[Any]]:
    return load_file(FOLDER / "shapes_dit.safetensors")


def test_the_images_of_diffusers_show_what_the_prompts_say(truth: dict[str, NDArray[Any]]) -> None:
    for image, prompt in zip(truth["images"], PROMPTS, strict=True):
        assert score(judge(image), read_caption(prompt)).everything, prompt


def test_the_images_of_the_engine_are_those_of_diffusers(truth: dict[str, NDArray[Any]]) -> None:
    oracle = FlowOracle.read(bundled_folder("shapes-dit"), Shape(height=64, width=64))
    table = step_table("euler", oracle.model.noise_schedule(oracle.shape), STEPS)
    pairs = [("", prompt) for prompt in PROMPTS]
    difference = np.abs(oracle.images(pairs, table, truth["noise"], GUIDANCE) - truth["images"])
    assert difference.max() <= 1
    assert difference.mean() < 1e-2
