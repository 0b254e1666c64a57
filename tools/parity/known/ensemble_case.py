"""SDXL's base and refiner, tiny, and the jobs that share the steps of one image.

Both sides write the checkpoints and run the jobs. This module needs neither torch nor JAX.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tools.parity.known.checkpoints import KNOWN, KnownCheckpoint

_TWO_LEVELS: Final = {
    "block_out_channels": [24, 24],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "attention_head_dim": [6, 12],
    "transformer_layers_per_block": [1, 1],
    "layers_per_block": 1,
}
"""`test_known_checkpoints` has both with all their levels."""


def _two_levels(name: str) -> KnownCheckpoint:
    return replace(KNOWN[name], unet={**KNOWN[name].unet, **_TWO_LEVELS})


BASE: Final = _two_levels("stabilityai/stable-diffusion-xl-base-1.0")
REFINER: Final = _two_levels("stabilityai/stable-diffusion-xl-refiner-1.0")
PROMPT, NEGATIVE = "a red circle on blue", "blue"
STEPS, GUIDANCE, SIDE = 6, 3.0, 64
SPLIT: Final = 0.6
"""Where the refiner takes over."""
SCHEDULERS: Final = (
    *("ddim", "euler", "euler_ancestral", "dpmsolver++", "dpmsolver++_karras", "pndm", "lcm"),
    *("deis", "unipc", "lms", "heun", "kdpm2", "kdpm2_ancestral", "tcd"),
    "dpmsolver++_singlestep",
)
OTHER_JOBS: Final[Mapping[str, Mapping[str, Any]]] = {
    "middle": {"denoising_start": SPLIT, "denoising_end": 0.8},
    "noised image": {"denoising_end": 0.8, "strength": 0.9},
}
"""Further jobs of the refiner with `euler` that end as latents. The first starts from the latents
of the base, the second from an image."""
