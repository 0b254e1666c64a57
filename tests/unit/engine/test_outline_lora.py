"""A LoRA that was trained for the bundled model acts, and as much as the job says."""

from pathlib import Path
from typing import Final

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from tests.support.judge import judge, score
from tests.unit.engine.parity import FOLDER
from tools.parity.outline_case import GUIDANCE, PROMPTS, SCALE, STEPS
from tools.train_shapes.captions import read_caption
from tools.train_shapes.outlines import LORA_FILE, fill

JUDGED: Final = [
    "a large yellow star in the center on a purple background",
    "a large red circle on the left on a blue background",
    "a medium black square at the top on a green background",
    "a medium blue heart on the right on a white background",
]


@pytest.fixture(scope="module")
def engine(cache_dir: Path) -> DiffusionEngine:
    loaded = load_engine(
        "shapes",
        devices=1,
        per_device_batch=2 * len(JUDGED),
        cache_dir=cache_dir,
        options=ModelOptions(job_loras=(LoraOption(name="outline", path=str(LORA_FILE)),)),
    )
    assert isinstance(loaded, DiffusionEngine)
    return loaded


def test_the_file_is_small() -> None:
    assert LORA_FILE.stat().st_size < 500_000


def test_the_shapes_of_jobs_with_the_lora_are_hollow_and_those_beside_them_are_not(
    engine: DiffusionEngine,
) -> None:
    engine.warm()
    info = engine.info
    specs = [
        ImageSpec(
            prompt=prompt,
            seed=seed,
            num_inference_steps=info.default_num_inference_steps,
            guidance_scale=info.default_guidance_scale,
            loras=loras,
        )
        for seed, prompt in enumerate(JUDGED)
        for loras in ((), (("outline", 1.0),))
    ]
    images = engine.start_batch(specs, info.shapes[0]).images()
    scenes = [read_caption(spec.prompt) for spec in specs]
    filled = [fill(image, scene) for image, scene in zip(images, scenes, strict=True)]
    assert min(filled[::2]) > 0.8, filled
    assert max(filled[1::2]) < 0.5, filled
    for image, scene in zip(images, scenes, strict=True):
        seen = score(judge(image), scene)
        assert (seen.colour, seen.background, seen.position) == (True, True, True), scene


def test_the_images_equal_those_of_diffusers_with_peft(engine: DiffusionEngine) -> None:
    expected = load_file(FOLDER / "outline.safetensors")
    programs, weights, builder = engine._programs, engine._weights, engine._input_builder
    specs = [
        ImageSpec(
            prompt=prompt,
            num_inference_steps=STEPS,
            guidance_scale=GUIDANCE,
            loras=(("outline", SCALE),),
        )
        for prompt in PROMPTS
    ]
    shape = engine.info.shapes[0]
    inputs = builder.inputs(specs, shape)
    conditions, state = jax.jit(programs.begin)(weights, inputs, builder.empty.init_latents(shape))
    noise = np.zeros(state.latents.shape, np.float32)
    noise[: len(specs)] = np.moveaxis(expected["noise"], 1, -1)
    state = state._replace(latents=noise * np.float32(inputs.initial_mix[0, 1]))
    step = jax.jit(programs.step)
    for _ in range(int(inputs.calls[0])):
        state, _ = step(weights.denoiser, conditions, state)
    images = np.asarray(jax.jit(programs.decode)(weights, state).images, int)[: len(specs)]
    difference = np.abs(images - expected["images"])
    assert difference.max() <= 1
    assert difference.mean() < 1e-3
