"""Write and read latents as safetensors files that diffusers reads, too.

Input: latents and their metadata. Output: the bytes of a file, or the other way round. A file has
one tensor, `latents`, float32 `[1, c, h, w]`: what a pipeline of diffusers returns with
`output_type="latent"`, and takes as `image` with `denoising_start`. The same input gives the same
bytes.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.contract.unfinished_latents import LatentArray, LatentFormat

_TENSOR: Final = "latents"
_METADATA: Final = "imagefleet"
"""The header has this one key, because safetensors writes several keys in random order."""
_SCALING: Final = "latent_scaling"
_MAX_VALUE: Final = 1e6
"""The noise of the first step is at most some 1e4 times as large as an image. If the values of a
job overflowed in the networks, the batch that it shares would be lost."""
_LENGTH_BYTES: Final = 8
"""A file begins with the length of its header, little-endian."""
MAX_HEADER_BYTES: Final = 262_144
"""A longer header is not read: reading one that lists 290,000 tensors takes 530 MB. The longest
that `encode_latents` writes has about half of this: two prompts of 4,000 characters and the
caller's metadata, as JSON within JSON."""


def encode_latents(latents: LatentArray, scaling: str, metadata: Mapping[str, Any]) -> bytes:
    """Return a file with `latents [h, w, c]`, how they are scaled, and `metadata` as JSON."""
    values = np.ascontiguousarray(np.moveaxis(latents, -1, 0)[None], np.float32)
    text = json.dumps({**metadata, _SCALING: scaling}, ensure_ascii=False)
    return save({_TENSOR: values}, {_METADATA: text})


def max_file_bytes(expected: LatentFormat, shape: Shape) -> int:
    """Return the most bytes that a file of latents for an image of `shape` may have."""
    return _LENGTH_BYTES + MAX_HEADER_BYTES + 4 * math.prod(_size(expected, shape))


def decode_latents(data: bytes, expected: LatentFormat, shape: Shape) -> LatentArray:
    """Return the latents in a file, float32 `[h, w, c]`.

    Args:
        data: The content of the file.
        expected: The latents of the model. A file that says nothing about its scaling, because
            another program wrote it, counts as agreeing.
        shape: The size of the image.

    Raises:
        ValueError: it is no such file, its header is longer than MAX_HEADER_BYTES, or its latents
            are of another type, size or scaling, or contain NaN, infinity or values beyond 1e6.
            The text is one clause.
    """
    length = _header_length(data)
    if MAX_HEADER_BYTES < length < len(data):
        raise ValueError(f"have a header of {length:,} bytes; must be at most {MAX_HEADER_BYTES:,}")
    try:
        tensors = load(data)
    except (SafetensorError, KeyError, ValueError, OverflowError, MemoryError) as error:
        raise ValueError(f"cannot be read as safetensors: {error}") from error
    values = tensors.get(_TENSOR)
    if values is None or len(tensors) != 1:
        names = ", ".join(sorted(tensors)) or "none"
        raise ValueError(f"must hold one tensor named {_TENSOR}; there are {names[:80]}")
    size = _size(expected, shape)
    if values.dtype != np.float32 or values.shape != size:
        found = f"{values.dtype}{list(values.shape)}"
        raise ValueError(f"are {found}; must be float32{list(size)} for an image of {shape}")
    if not (np.abs(values) <= _MAX_VALUE).all():
        raise ValueError(f"contain NaN, infinity or values beyond {_MAX_VALUE:g}")
    scaling = _scaling_of(data)
    if scaling is not None and scaling != expected.scaling:
        raise ValueError(
            f"are of a model with {scaling[:200]}; those of this model have {expected.scaling}"
        )
    return np.ascontiguousarray(np.moveaxis(values[0], 0, -1))


def _size(expected: LatentFormat, shape: Shape) -> tuple[int, int, int, int]:
    factor = expected.pixels_per_latent
    return 1, expected.channels, shape.height // factor, shape.width // factor


def _header_length(data: bytes) -> int:
    return int.from_bytes(data[:_LENGTH_BYTES], "little")


def _scaling_of(data: bytes) -> str | None:
    """Return how the latents of a valid file are scaled; None if it does not say."""
    try:
        header = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + _header_length(data)])
        found = json.loads(header["__metadata__"][_METADATA])[_SCALING]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None
