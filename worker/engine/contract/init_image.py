"""Define the image that image-to-image starts from. Nothing is read or checked here."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.jobs.default_strengths import steps_left


@dataclass(frozen=True, kw_only=True)
class InitImage:
    """It is an image that image-to-image starts from. It has the size of the image to generate."""

    pixels: NDArray[np.uint8] = field(repr=False, compare=False)
    """It is RGB, `[height, width, 3]`."""
    mask_levels: NDArray[np.uint8] | None = field(default=None, repr=False, compare=False)
    """It is uint8 `[height, width]` and says what share of each pixel is generated, of 255. The
    finished image is blended by it. None means that there is no mask."""
    strength: float
    """It is the share of the steps that run, above 0 and up to 1 (diffusers)."""
    rounds_up: bool = False
    """Whether a step of which the strength leaves a part is run. The model decides."""
    digest: str
    """It is `sha256:…` of the pixels and the mask, and represents them where specs are compared."""
    image_digest: str = field(default="", compare=False)
    """It is `sha256:…` of the file of the image, as it was read. '': it was no file."""
    mask_image_digest: str = field(default="", compare=False)
    """It is the same of the mask. '': there is none."""

    def skipped_of(self, steps: int) -> int:
        """Return how many of the first steps the strength leaves out."""
        return steps - steps_left(steps, self.strength, rounds_up=self.rounds_up)

    @property
    def inpaint_mask(self) -> NDArray[np.bool_] | None:
        """Return bool `[height, width]`: True where the image is generated, False where the init
        image is kept. None stands for True everywhere."""
        return None if self.mask_levels is None else self.mask_levels >= 128
