"""Define latents that leave a model before they are finished, and enter the next one.

In this way SDXL's base and its refiner share the steps of an image: Podell et al. 2023, section
2.5; `denoising_end` and `denoising_start` of diffusers. This module needs numpy only.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import DeviceError

LatentArray = NDArray[np.float32]
"""It has the latents of one image as diffusers keeps them between two steps, but with channels
last: float32 `[h, w, c]`."""


@dataclass(frozen=True, kw_only=True)
class LatentFormat:
    """It describes the latents that a model passes on and takes."""

    channels: int
    pixels_per_latent: int
    """A latent stands for a square of pixels with this side."""
    scaling: str
    """It says how they are scaled: `scaling_factor=0.13025`, and perhaps the means and deviations
    of the channels. A model can take latents only from models with the same scaling."""


@dataclass(frozen=True, kw_only=True)
class InputLatents:
    """These latents were denoised in part, and have the size of the image to generate."""

    values: LatentArray = field(repr=False, compare=False)
    denoising_start: float
    """It is the share of the steps that are done, between 0 and 1 (diffusers)."""
    digest: str
    """It is `sha256:…` of the values, and represents them where specs are compared."""


def require_finite(latents: LatentArray, prompt: str) -> None:
    """Raise DeviceError if the latents of a prompt contain NaN or infinity."""
    if not np.isfinite(latents).all():
        raise DeviceError(f"the latents of prompt {prompt[:60]!r} contain NaN or infinity")
