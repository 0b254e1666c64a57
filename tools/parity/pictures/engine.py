"""Make the images of drawn jobs with our engine, and the noise that it draws for them.

Input: a checkpoint, and jobs of `draw`. Output: images of whole batches and of streams, and the
noise of each job, which diffusers gets too. The noise is drawn here from its definition in
`NoiseUse`, not by the functions of the engine.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import jax
import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import Engine, ImageSpec, ModelInfo, Shape
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.options.textual_inversion_options import TextualInversionOption
from tools.parity.pictures.draw import LORAS, MAX_STEPS, TOKEN, PictureJob, draw_image, draw_mask

SLOTS: Final = 4
_USES: Final = {"start": 0, "encoding": 2 << 16, "masked": 3 << 16}
_STEPS: Final = 1 << 16
_CALLS: Final = 2 * MAX_STEPS + 2
"""Calls of the network, at most: two a step."""


def load(
    folder: Path, files: Path, side: tuple[int, int], cache: Path, *, mesh: str, streams: bool
) -> Engine:
    """Load the checkpoint with its LoRA and its token. Nothing is compiled yet.

    `mesh` is the worker's setting, with one copy of the weights.
    """
    return load_engine(
        str(folder),
        mesh=mesh,
        per_device_batch=SLOTS,
        cache_dir=cache,
        max_num_inference_steps=MAX_STEPS,
        shapes=[Shape(height=side[0], width=side[1])],
        options=ModelOptions(
            job_loras=tuple(
                LoraOption(name=n, path=str(files / f"{n}.safetensors")) for n in LORAS
            ),
            textual_inversions=(
                TextualInversionOption(name=TOKEN, path=str(files / "drawn.safetensors")),
            ),
            streams=streams,
        ),
    )


def offered(job: PictureJob, info: ModelInfo) -> PictureJob:
    """Return the job without what workers would refuse for this checkpoint."""
    return replace(
        job,
        scheduler=job.scheduler if job.scheduler in info.schedulers else None,
        clip_skip=job.clip_skip if info.max_clip_skip else None,
        guidance_rescale=job.guidance_rescale if info.rescales_guidance else 0.0,
    )


def batch_images(engine: Engine, specs: Sequence[ImageSpec]) -> NDArray[np.uint8]:
    """Return the images of all jobs, uint8 `[n, height, width, 3]`, made in full batches."""
    engine.warm()
    shape = engine.info.shapes[0]
    parts = [
        engine.start_batch(specs[first : first + SLOTS], shape).images()
        for first in range(0, len(specs), SLOTS)
    ]
    return np.concatenate(parts)


def stream_images(engine: Engine, specs: Sequence[ImageSpec]) -> NDArray[np.uint8]:
    """Return the same by a stream, which images enter and leave at any step."""
    (stream,) = engine.open_streams()
    shape, images = engine.info.shapes[0], {}
    waiting, running = list(range(len(specs))), dict[int, int]()
    while waiting or running:
        for slot in range(SLOTS):
            if slot not in running and waiting:
                running[slot] = waiting.pop(0)
                stream.start(slot, specs[running[slot]], shape)
        for slot in stream.step():
            images[running.pop(slot)] = stream.finish(slot)().pixels
    return np.stack([images[number] for number in range(len(specs))])


def spec_of(job: PictureJob, info: ModelInfo, side: tuple[int, int]) -> ImageSpec:
    """Return what a worker would make of the job."""
    return ImageSpec(
        prompt=job.prompt,
        # A blank says that an empty one was given.
        negative_prompt="" if job.negative_prompt is None else job.negative_prompt or " ",
        seed=job.seed,
        image_index=job.image_index,
        num_inference_steps=job.num_inference_steps,
        guidance_scale=job.guidance_scale,
        guidance_rescale=job.guidance_rescale,
        clip_skip=job.clip_skip,
        scheduler=job.scheduler or info.default_scheduler,
        loras=tuple(sorted(job.loras.items())),
        image_guidance_scale=job.image_guidance_scale,
        init_image=_init_image(job, info, side),
    )


def _init_image(job: PictureJob, info: ModelInfo, side: tuple[int, int]) -> InitImage | None:
    if not info.image_use.required:
        return None
    has_mask = "mask_image" in info.image_use.required
    return InitImage(
        pixels=draw_image(side, job.seed),
        mask_levels=draw_mask(side, job.seed) if has_mask else None,
        strength=1.0 if job.strength is None else job.strength,
        digest=f"{job.seed}",
    )


def noise_of(job: PictureJob, latent_size: tuple[int, int]) -> dict[str, NDArray[np.float32]]:
    """Return the noise of the job, `[1, 4, h, w]` by use, and `steps [calls, 1, 4, h, w]`."""
    key = jax.random.key(job.seed, impl="threefry2x32")

    def draw(key: jax.Array) -> NDArray[np.float32]:
        noise = jax.random.normal(key, (*latent_size, 4), jax.numpy.float32)
        return np.asarray(noise).transpose(2, 0, 1)[None].copy()

    of_steps = jax.random.fold_in(key, _STEPS + job.image_index)
    steps = [draw(jax.random.fold_in(of_steps, call)) for call in range(_CALLS)]
    uses = {
        use: draw(jax.random.fold_in(key, number + job.image_index))
        for use, number in _USES.items()
    }
    return {**uses, "steps": np.stack(steps)}
