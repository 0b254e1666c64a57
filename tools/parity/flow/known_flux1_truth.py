"""Ask diffusers for the answers to the well-known checkpoints of `known_flux1`.

There is no input. The output is an image of each that loads, and the noise that one begins with.
"""

import torch

from tools.parity.checkpoints import Tensors
from tools.parity.flow.flux1_case import HEIGHT, WIDTH
from tools.parity.flow.flux1_truth import filled, image_of, load_pipeline, noise
from tools.parity.flow.known_flux1 import FILLS, KNOWN_FLUX1, KONTEXT


@torch.no_grad()
def known_flux1_answers() -> Tensors:
    """Return the images by the names of the checkpoints."""
    answers: Tensors = {"noise": noise()[:1]}
    for name, known in KNOWN_FLUX1.items():
        if known.refused:
            continue
        if name == FILLS:
            answers[name] = filled(load_pipeline(known.variant), 1.0)
        elif name == KONTEXT:
            answers[name] = image_of(known.variant, max_area=HEIGHT * WIDTH)
        else:
            answers[name] = image_of(known.variant)
    return {name: image.clone().contiguous() for name, image in answers.items()}
