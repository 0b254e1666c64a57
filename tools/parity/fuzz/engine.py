"""Ask our engine for the images of a drawn checkpoint.

Input: a checkpoint and a job. Output: the images or the engine's error. The checkpoint is loaded as
by a worker. The programs are not compiled ahead but by `jax.jit`, whose cache serves all
checkpoints with the same networks.
"""

from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.runtime.text_cache import TextCache
from imagefleet.worker.engine.sampling import programs as diffusion_programs
from imagefleet.worker.engine.sampling.arrays import (
    BatchInputs,
    Conditions,
    Decoded,
    InitImages,
    InitLatents,
    SamplerState,
    Weights,
)
from imagefleet.worker.engine.sampling.denoiser_protocol import TextEncoding
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms
from imagefleet.worker.jobs.attempt import offer_of, plan_attempt
from tools.parity.fuzz.draft import Draft, Job, noise
from tools.parity.known.write import init_image, inpaint_mask

MAX_STEPS = 4


def generate(draft: Draft, cache_dir: Path, mesh: str) -> NDArray[np.uint8]:
    """Return the images of the job, uint8 `[n, h, w, 3]`.

    `mesh` is the worker's setting, with one copy of the weights.

    Raises:
        CheckpointError, ConfigurationError: The checkpoint is refused.
        InvalidRequest: The job is refused.
    """
    engine = load_engine(
        str(draft.single_file or draft.folder),
        mesh=mesh,
        per_device_batch=2,
        cache_dir=cache_dir,
        max_num_inference_steps=MAX_STEPS,
        shapes=[Shape(height=draft.job.side, width=draft.job.side)] if draft.job.side else None,
        options=ModelOptions(
            scheduler=draft.job.scheduler,
            loras=tuple(
                LoraOption(name=name, path=str(draft.folder / name), scale=scale)
                for name, scale in draft.loras
            ),
        ),
    )
    assert isinstance(engine, DiffusionEngine)
    return _run(engine, draft.job)


def _run(engine: DiffusionEngine, job: Job) -> NDArray[np.uint8]:
    """Generate all images in one batch, with the noise of `noise` for all random noise."""
    programs: DiffusionPrograms = engine._compiler.programs
    shape = engine.info.shapes[0]
    specs = [spec for prompt in range(len(job.prompts)) for spec in _specs(engine, job, prompt)]
    inputs = engine._input_builder.inputs(specs, shape)
    inputs = TextCache(0).fill(inputs, partial(_encode_text, programs, engine._weights), 1)
    init_images = engine._input_builder.init_images(specs, shape)
    init_latents = engine._empty_batch.init_latents(shape)
    with (
        patch.object(diffusion_programs, "normal", _normal),
        jax.set_mesh(engine._placement.mesh),
    ):
        if init_images is not None:
            init_latents = _encode(programs, engine._weights, init_images)
        conditions, state = _begin(programs, engine._weights, inputs, init_latents)
        for _ in range(int(inputs.calls.max())):
            state = _step(programs, engine._weights.denoiser, conditions, state)
        decoded = _decode(programs, engine._weights, state)
    if not np.asarray(decoded.finite)[: len(specs)].all():
        raise CheckpointError("the images are not finite; `warm` would refuse this checkpoint")
    return np.asarray(decoded.images)[: len(specs)]


def _specs(engine: DiffusionEngine, job: Job, prompt: int) -> tuple[Any, ...]:
    parameters: dict[str, Any] = {
        "prompt": job.prompts[prompt],
        "seed": 0,
        "scheduler": job.scheduler,
        "num_inference_steps": job.steps,
        "guidance_scale": job.guidance,
        "guidance_rescale": job.guidance_rescale,
        "clip_skip": job.clip_skip,
        "cfg_normalization": job.cfg_normalization,
        "cfg_truncation": job.cfg_truncation,
        "true_cfg_scale": job.true_cfg_scale,
    }
    if job.negative_prompts is not None:
        parameters["negative_prompt"] = job.negative_prompts[prompt]
    # Only their presence counts here: the pixels are those of `_init_image`.
    for name in engine.info.image_use.required:
        if job.strength is not None:
            parameters[name] = "drawn"
    request = JobRequest.parse(parameters)
    admit(request, {"default": offer_of(engine.info)})
    attempt = plan_attempt("", request, engine.info)
    if job.strength is not None:
        attempt.start_from(_init_image(engine, job))
    return attempt.specs


def _init_image(engine: DiffusionEngine, job: Job) -> InitImage:
    side = engine.info.shapes[0].height
    return InitImage(
        pixels=init_image(side),
        mask_levels=inpaint_mask(side) if job.is_masked else None,
        strength=job.strength or 1.0,
        rounds_up=engine.info.image_use.default_strengths.rounds_up,
        digest="",
    )


def _normal(key: jax.Array, size: tuple[int, ...]) -> jax.Array:
    height, width, channels = size
    drawn = noise((len(key), channels, height, width))
    return jax.numpy.asarray(np.moveaxis(drawn, 1, -1))


def _encode_text(
    programs: DiffusionPrograms, weights: Weights, ids: NDArray[np.int32]
) -> NDArray[Any]:
    encoding = programs.denoiser.text_encoding
    return np.asarray(_text_states(encoding, weights, jax.numpy.asarray(ids)))


@partial(jax.jit, static_argnums=0)
def _text_states(encoding: TextEncoding, weights: Weights, ids: jax.Array) -> jax.Array:
    return encoding(weights, ids)


@partial(jax.jit, static_argnums=0)
def _encode(programs: DiffusionPrograms, weights: Weights, init_images: InitImages) -> InitLatents:
    return programs.encode(weights, init_images)


@partial(jax.jit, static_argnums=0)
def _begin(
    programs: DiffusionPrograms, weights: Weights, inputs: BatchInputs, init_latents: InitLatents
) -> tuple[Conditions, SamplerState]:
    return programs.begin(weights, inputs, init_latents)


@partial(jax.jit, static_argnums=0)
def _step(
    programs: DiffusionPrograms, unet: Any, conditions: Conditions, state: SamplerState
) -> SamplerState:
    return programs.step(unet, conditions, state)[0]


@partial(jax.jit, static_argnums=0)
def _decode(programs: DiffusionPrograms, weights: Weights, state: SamplerState) -> Decoded:
    return programs.decode(weights, state)
