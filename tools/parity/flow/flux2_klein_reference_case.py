"""List the images of FLUX.2 klein with a reference image that both sides make."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tools.parity.flow.flux2_klein_case import PROMPTS, VARIANTS, Variant
from tools.parity.known.write import init_image

HEIGHT, WIDTH = 64, 80
"""diffusers takes no image with a side below 64."""
REFERENCES: Final[Mapping[str, Variant]] = {
    "unguided": Variant(height=HEIGHT, width=WIDTH, guidance=1.0),
    "a long prompt": Variant(height=HEIGHT, width=WIDTH, steps=3, prompt=PROMPTS[1]),
    "tall": Variant(height=144, width=64, guidance=4.0),
} | {
    name: replace(variant, height=64, width=96 if variant.height < variant.width else 64)
    for name, variant in VARIANTS.items()
}


def reference_image(variant: Variant) -> NDArray[np.uint8]:
    """Return the reference image of a case, uint8 `[h, w, 3]`, of the size of its image."""
    return init_image(max(variant.height, variant.width))[: variant.height, : variant.width]
