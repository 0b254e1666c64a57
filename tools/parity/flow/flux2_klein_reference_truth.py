"""Ask diffusers for images with the reference images of `flux2_klein_reference_case`."""

import torch
from PIL import Image

from tools.parity.checkpoints import Tensors
from tools.parity.flow.flux2_klein_reference_case import REFERENCES, reference_image
from tools.parity.flow.flux2_klein_truth import image_of


@torch.no_grad()
def flux2_klein_references() -> Tensors:
    """Return the images, uint8 `[1, h, w, 3]`, by the names of the cases."""
    return {
        name: image_of(variant, image=Image.fromarray(reference_image(variant))).contiguous()
        for name, variant in REFERENCES.items()
    }
