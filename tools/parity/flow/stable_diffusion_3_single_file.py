"""The tiny Stable Diffusion 3 as one file, with weights drawn by their names in it. Both sides
write it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from safetensors.numpy import save_file

from imagefleet.worker.engine.families.stable_diffusion_3.single_file_keys import (
    StableDiffusion3Format,
)
from tools.parity.flow.stable_diffusion_3_case import CLIP, CLIP_2, Variant, write_configs
from tools.parity.known.single_file import draw_stored
from tools.parity.known.write import Shapes

UNREAD: Final = (
    "text_encoders.clip_l.logit_scale",
    "text_encoders.clip_l.transformer.text_projection.weight",
    "text_encoders.clip_g.logit_scale",
)
"""ComfyUI's files have these tensors, which diffusers does not read."""


@dataclass(frozen=True)
class SingleFile:
    """It says what a file has."""

    variant: Variant
    vae: str
    """The keys of the autoencoder begin so."""
    has_t5: bool = True
    """Otherwise the configs have it, and the file does not."""


_MEDIUM_3_5: Final = Variant(
    clip={"projection_dim": CLIP["hidden_size"]},  # diffusers takes the identity
    transformer={"pooled_projection_dim": CLIP["hidden_size"] + CLIP_2["projection_dim"]},
)
SINGLE_FILES: Final[Mapping[str, SingleFile]] = {
    "file of 3.5 medium": SingleFile(_MEDIUM_3_5, "first_stage_model."),
    "file of 3 medium without T5": SingleFile(
        replace(
            _MEDIUM_3_5,
            transformer={
                **_MEDIUM_3_5.transformer,
                "dual_attention_layers": [],
                "qk_norm": None,
            },
        ),
        "vae.",
        has_t5=False,
    ),
}


def write_single_file(folder: Path, file: SingleFile, shapes: Mapping[str, Shapes]) -> Path:
    """Write `model.safetensors`, and configs and tokenizers beside it. Return the file.

    `shapes` are those of the weights in diffusers format, by network.
    """
    write_configs(folder / "model", file.variant)
    tensors = {key: np.ones((1, 1), np.float32) for key in UNREAD}
    for network, of_network in shapes.items():
        if network == "text_encoder_3" and not file.has_t5:
            continue
        places = StableDiffusion3Format().origins(network, of_network, (file.vae,))
        for key, origin in places.items():
            if origin.is_identity:
                continue  # another key has this tensor
            tensors[origin.key] = draw_stored(of_network[key], origin)
    path = folder / "model.safetensors"
    save_file(tensors, path)
    return path
