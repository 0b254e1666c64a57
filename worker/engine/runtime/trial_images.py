"""Make the image of which an engine tries each program before it takes work.

Input: a shape. Output: a colour chart with its spec, and an error if the networks make NaN or
infinity of it. It depends on no devices.
"""

from typing import Final

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageArray, ImageSpec, Shape
from imagefleet.worker.engine.sampling.latent_preview import colour_chart

DENOISING_PARTS: Final = "the text encoders, the denoiser or the autoencoder's decoder"
"""These are the networks that make an image of latents."""


def colour_spec(shape: Shape, scheduler: str) -> tuple[ImageArray, ImageSpec]:
    """Return the colour chart, and the spec of one guided step that starts from it."""
    chart = colour_chart(shape)
    init_image = InitImage(pixels=chart, strength=1.0, digest="")
    spec = ImageSpec(
        prompt="",
        num_inference_steps=1,
        guidance_scale=2.0,
        scheduler=scheduler,
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
