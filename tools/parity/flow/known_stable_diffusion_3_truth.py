"""diffusers' answers for the well-known checkpoints of `known_stable_diffusion_3`.

There is no input. The output is an image of each that loads.
"""

import torch

from tools.parity.checkpoints import Tensors
from tools.parity.flow.known_stable_diffusion_3 import KNOWN_STABLE_DIFFUSION_3
from tools.parity.flow.stable_diffusion_3_truth import image_of


@torch.no_grad()
def known_stable_diffusion_3_answers() -> Tensors:
    """Return the images by the names of the checkpoints."""
    return {
        name: image_of(known.variant).clone().contiguous()
        for name, known in KNOWN_STABLE_DIFFUSION_3.items()
        if not known.refused
    }
