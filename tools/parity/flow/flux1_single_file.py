"""Write the tiny FLUX.1 as one file, with weights drawn by their names. Both sides write it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from safetensors.numpy import save_file

from imagefleet.worker.engine.families.flux1.single_file_keys import Flux1Format
from tools.parity.flow.flux1_case import write_configs
from tools.parity.known.single_file import draw_stored
from tools.parity.known.write import Shapes

UNREAD: Final = (
    "text_encoders.clip_l.logit_scale",
    "text_encoders.clip_l.transformer.text_projection.weight",
    "text_encoders.t5xxl.logit_scale",
)
"""ComfyUI's files have these tensors, which no network reads."""


def write_single_file(folder: Path, shapes: Mapping[str, Shapes]) -> Path:
    """Write `model.safetensors`, and configs and tokenizers beside it. Return the file.

    `shapes` are those of the weights in diffusers format, by network.
    """
    write_configs(folder / "model")
    tensors = {key: np.ones((1, 1), np.float32) for key in UNREAD}
    for network, of_network in shapes.items():
        for key, origin in Flux1Format().origins(network, of_network, ()).items():
            tensors[origin.key] = draw_stored(of_network[key], origin)
    file = folder / "model.safetensors"
    save_file(tensors, file)
    return file
