"""Write the files of a tiny checkpoint of a flow model, with weights drawn by their names.

Both sides write the same files, so only diffusers' answers are stored. This module needs neither
torch nor JAX.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tools.parity.flow.qwen_tokenizer import write_tokenizer
from tools.parity.known.write import Shapes, draw

Json = Mapping[str, Any]


_QWEN: Final[Mapping[str, Callable[[Path], object]]] = {"tokenizer": write_tokenizer}


def write_files(
    folder: Path,
    index: Json,
    configs: Mapping[str, Json],
    tokenizers: Mapping[str, Callable[[Path], object]] = _QWEN,
) -> None:
    """Write all files of a checkpoint but its weights. `configs` and what writes the tokenizers are
    by folder."""
    for name, write in tokenizers.items():
        write(folder / name)
    for name, config in configs.items():
        file = "scheduler_config.json" if name == "scheduler" else "config.json"
        _write(folder / name / file, config)
    _write(folder / "model_index.json", index)


def write_weights(folder: Path, network: str, shapes: Shapes) -> None:
    """Draw the weights of a network and write them."""
    tensors = {key: draw(network, key, shape) for key, shape in shapes.items()}
    stem = "model" if network.startswith("text_encoder") else "diffusion_pytorch_model"
    save_file(tensors, folder / network / f"{stem}.safetensors")


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def levels(count: int) -> dict[str, Any]:
    """Return the fields of an autoencoder's config with so many levels."""
    return {
        "block_out_channels": [8] * count,
        "down_block_types": ["DownEncoderBlock2D"] * count,
        "up_block_types": ["UpDecoderBlock2D"] * count,
    }


def noise_of(vae: Json, height: int, width: int) -> NDArray[np.float32]:
    """Return the noise at the start of an image, `[1, c, h, w]`, for an AutoencoderKL's config."""
    pixels = 2 ** (len(vae["block_out_channels"]) - 1)
    size = (1, vae["latent_channels"], height // pixels, width // pixels)
    return np.random.RandomState(8).standard_normal(size).astype(np.float32)
