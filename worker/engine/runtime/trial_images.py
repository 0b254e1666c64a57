"""Make the image of which an engine tries each program before it takes work.

Input: a shape, or a stream. Output: a colour chart with its spec, and an error if the networks make
NaN or infinity of it.
"""

from dataclasses import replace
from typing import Final

import jax
import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import CheckpointError, DeviceError
from imagefleet.shared.jobs.parameter_types import GIVEN_EMPTY
from imagefleet.worker.engine.compile.program_compiler import Steps
from imagefleet.worker.engine.contract.control_image import ControlImage
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageArray, ImageSpec, ModelInfo, Shape
from imagefleet.worker.engine.runtime.device_stream import DeviceStream
from imagefleet.worker.engine.sampling.arrays import InitLatents, SamplerState
from imagefleet.worker.engine.sampling.latent_preview import colour_chart

DENOISING_PARTS: Final = "the text encoders, the denoiser or the autoencoder's decoder"
"""These are the networks that make an image of latents."""


def colour_spec(shape: Shape, info: ModelInfo) -> tuple[ImageArray, ImageSpec]:
    """Return the colour chart, and the spec of one guided step that starts from it."""
    chart = colour_chart(shape)
    init_image = InitImage(pixels=chart, strength=1.0, digest="")
    spec = ImageSpec(
        prompt="",
        negative_prompt=GIVEN_EMPTY,
        num_inference_steps=1,
        guidance_scale=2.0,
        true_cfg_scale=2.0 if info.true_guidance else 1.0,
        scheduler=info.default_scheduler,
        init_image=init_image,
    )
    return chart, spec


def require_finite(is_finite: bool, parts: str, shape: Shape) -> None:
    """Refuse a checkpoint whose weights are finite but too large for the dtype."""
    if not is_finite:
        raise CheckpointError(
            f"{parts} of this checkpoint make NaN or infinity of a test image of {shape}, although "
            "every weight is finite; set IMAGEFLEET_DTYPE=float32, or take another checkpoint"
        )


def require_finite_chart(init_latents: InitLatents, shape: Shape) -> NDArray[np.float32]:
    """Wait for the latents of the chart, which is in slot 0, and return them.

    Raises:
        CheckpointError: they contain NaN or infinity.
    """
    return _require_finite_slot(init_latents.latents, "the autoencoder's encoder", shape)


def require_finite_latents(state: SamplerState, shape: Shape) -> None:
    """Wait for a step, and refuse the checkpoint if the latents of slot 0 are not finite."""
    _require_finite_slot(state.latents, DENOISING_PARTS, shape)


def _require_finite_slot(latents: jax.Array, parts: str, shape: Shape) -> NDArray[np.float32]:
    """Wait for the latents of slot 0, and return them if they are finite."""
    first: NDArray[np.float32] = np.asarray(latents)[0]
    require_finite(bool(np.isfinite(first).all()), parts, shape)
    return first


def specs_of_other_steps(executables: Steps, spec: ImageSpec, info: ModelInfo) -> list[ImageSpec]:
    """Return images that run those programs of a step that `spec` does not run: one without
    guidance, and without the image, where there are such programs; and one for each ControlNet, by
    which the image of `spec` steers it."""
    specs = [spec]
    if executables.unguided_step is not None:
        specs.append(replace(spec, guidance_scale=info.unguided_scale, true_cfg_scale=1.0))
    if executables.reference_step is not None:
        specs += [replace(each, init_image=None) for each in specs]
    if spec.init_image is not None:
        image = ControlImage(pixels=spec.init_image.pixels, digest="")
        without = replace(spec, init_image=None, control_image=image)
        specs += [replace(without, controlnet=name) for name in info.controlnets]
    return specs[1:]


def run_stream_programs(
    stream: DeviceStream, executables: Steps, shape: Shape, info: ModelInfo
) -> None:
    """Run each program of a shape once, so that no job waits for a first run, and fit the RGB
    factors of the stream.

    Raises:
        CheckpointError: the networks make NaN or infinity.
    """
    chart, spec = colour_spec(shape, info)
    init_latents = stream.init_latents(spec, shape)
    stream.fit_previews(chart, require_finite_chart(init_latents, shape))
    stream.start_encoded(0, spec, shape, init_latents)
    while not stream.step():
        pass
    stream.previews()()
    finished = stream.finish(0)
    try:
        finished()
    except DeviceError:
        require_finite(False, DENOISING_PARTS, shape)
    for other in specs_of_other_steps(executables, spec, info):
        start = init_latents if other.init_image else stream.init_latents(other, shape)
        stream.start_encoded(0, other, shape, start)
        stream.step()
        require_finite_latents(stream.state, shape)
        stream.drop(0)
