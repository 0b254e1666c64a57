"""Well-known checkpoints as one file in the original format, with weights drawn by their names.

Input: the shapes of the weights in diffusers format. Output: the tensors of the file. This module
needs neither torch nor JAX.
"""

import hashlib
import zlib
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.checkpoint.single_file import Origin
from imagefleet.worker.engine.families.stable_diffusion.single_file_keys import (
    CLIP_PREFIXES,
    OPEN_CLIP_PREFIXES,
    origins,
)
from tools.parity.known.write import Shapes, current_name, draw

SINGLE_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "CompVis/stable-diffusion-v1-4": (CLIP_PREFIXES["text_encoder"][0],),
    "stabilityai/stable-diffusion-2-1": (OPEN_CLIP_PREFIXES["text_encoder"][0],),
    "stabilityai/stable-diffusion-xl-base-1.0": (
        CLIP_PREFIXES["text_encoder"][1],
        OPEN_CLIP_PREFIXES["text_encoder_2"][0],
    ),
    "segmind/SSD-1B": (
        CLIP_PREFIXES["text_encoder"][1],
        OPEN_CLIP_PREFIXES["text_encoder_2"][0],
    ),
    "stabilityai/stable-diffusion-xl-refiner-1.0": (OPEN_CLIP_PREFIXES["text_encoder_2"][1],),
}
"""By name: the prefixes of the text encoders in the file."""
UNREAD: Final = ("betas", "model_ema.decay", "cond_stage_model.logit_scale")
"""Tensors that are in published files and are no weights."""


def original_tensors(name: str, shapes: Mapping[str, Shapes]) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of the file. `shapes` are in diffusers format, by network and key."""
    tensors = {key: np.zeros(2, np.float32) for key in UNREAD}
    for network, of_network in shapes.items():
        current = {current_name(key): shape for key, shape in of_network.items()}
        for key, origin in origins(network, current, SINGLE_FILES[name]).items():
            tensors[origin.key] = draw_stored(current[key], origin)
    return tensors


def draw_stored(shape: tuple[int, ...], origin: Origin) -> NDArray[np.float32]:
    """Draw the tensor of a file in which a weight of this shape is."""
    return draw("single", origin.key, _stored_shape(shape, origin))


def content_digest(tensors: Mapping[str, NDArray[np.float32]]) -> str:
    """Return the digest of keys, shapes and contents. A 1x1 convolution is a matrix."""
    lines = []
    for key, tensor in sorted(tensors.items()):
        shape = tensor.shape[:2] if tensor.shape[2:] == (1, 1) else tensor.shape
        lines.append(f"{key} {list(shape)} {zlib.crc32(np.ascontiguousarray(tensor).tobytes())}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _stored_shape(shape: tuple[int, ...], origin: Origin) -> tuple[int, ...]:
    if origin.transposed:
        return shape[::-1]
    if origin.part is None:
        return shape
    _, count, parts = origin.part
    return (shape[0] * parts // count, *shape[1:])
