"""Encode the latents of an unfinished image as a file that carries its own parameters.

Input: float32 latents and the metadata of `worker.images.metadata`. Output: a safetensors file.
"""

from collections.abc import Mapping
from typing import Any

from imagefleet.shared.jobs.result import LATENTS
from imagefleet.worker.engine.contract.latents_file import encode_latents
from imagefleet.worker.engine.contract.unfinished_latents import LatentArray, LatentFormat
from imagefleet.worker.images.encode import EncodedImage


def encode_unfinished(
    latents: LatentArray, latent_format: LatentFormat, metadata: Mapping[str, Any]
) -> EncodedImage:
    """Encode latents `[h, w, c]` of a model with this format.

    Raises:
        ValueError: they have another type or number of axes.
    """
    if latents.dtype != "float32" or latents.ndim != 3:
        raise ValueError(f"latents are {latents.dtype}{list(latents.shape)}, not float32[h, w, c]")
    return EncodedImage(
        data=encode_latents(latents, latent_format.scaling, metadata),
        content_type="application/octet-stream",
        extension=LATENTS,
        pixel_sha256=None,
    )
