"""Write a well-known checkpoint, tiny, with weights that are drawn by their names.

The weights are the same wherever they are drawn, so both sides can write the checkpoint, and only
diffusers' answers are stored. This module needs neither torch nor JAX.
"""

import hashlib
import json
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tools.parity.fuzz.draft import FIXTURES
from tools.parity.known.checkpoints import KnownCheckpoint

Shapes = Mapping[str, tuple[int, ...]]
_CLASSES: Final = {"unet": "UNet2DConditionModel", "vae": "AutoencoderKL"}
STEMS: Final = {"unet": "diffusion_pytorch_model", "vae": "diffusion_pytorch_model"}
"""The names of weight files without their ending. Those of text encoders are `model`."""


def write_configs(folder: Path, checkpoint: KnownCheckpoint) -> None:
    """Write all files of a checkpoint but its weights."""
    index: dict[str, Any] = {"_class_name": checkpoint.pipeline, "_diffusers_version": "0.27.0"}
    index |= checkpoint.index
    index |= {"scheduler": ["diffusers", checkpoint.scheduler]}
    index |= {part: ["diffusers", name] for part, name in _CLASSES.items()}
    if "force_zeros_for_empty_prompt" not in checkpoint.index:
        index |= {"safety_checker": [None, None], "feature_extractor": [None, None]}
        index |= {"requires_safety_checker": False}
    configs: dict[str, Mapping[str, Any]] = {
        "unet": {"_class_name": _CLASSES["unet"], **checkpoint.unet},
        "vae": {"_class_name": _CLASSES["vae"], **checkpoint.vae},
    }
    for name, (class_name, config) in checkpoint.text_encoders.items():
        index[name], configs[name] = ["transformers", class_name], config
        tokenizer = name.replace("text_encoder", "tokenizer")
        index[tokenizer] = ["transformers", "CLIPTokenizer"]
        shutil.copytree(FIXTURES / "older" / "tokenizer", folder / tokenizer)
    for name, config in configs.items():
        _write(folder / name / "config.json", config)
    scheduler = {"_class_name": checkpoint.scheduler, **checkpoint.scheduler_fields}
    _write(folder / "scheduler" / "scheduler_config.json", scheduler)
    _write(folder / "model_index.json", index)


def write_weights(folder: Path, checkpoint: KnownCheckpoint, network: str, shapes: Shapes) -> None:
    """Draw the weights of a network and write them, in one file or in two shards."""
    tensors = {key: draw(network, key, shape) for key, shape in shapes.items()}
    stem, half = STEMS.get(network, "model"), ".fp16" if checkpoint.half_only else ""
    if not (checkpoint.sharded and network == "unet"):
        save_file(tensors, folder / network / f"{stem}{half}.safetensors")
        return
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        shard = f"{stem}-0000{number}-of-00002.safetensors"
        save_file({key: tensors[key] for key in part}, folder / network / shard)
        weight_map |= dict.fromkeys(part, shard)
    _write(
        folder / network / f"{stem}.safetensors.index.json",
        {"metadata": {}, "weight_map": weight_map},
    )


def init_image(side: int) -> NDArray[np.uint8]:
    """Return an image to start from, uint8 `[side, side, 3]`: smooth, and different everywhere."""
    rows, columns = np.mgrid[:side, :side] / side
    channels = np.stack([rows, columns, (rows - columns) ** 2], axis=-1)
    return np.round(255 * channels).astype(np.uint8)


def inpaint_mask(side: int) -> NDArray[np.uint8]:
    """Return a mask, 255 where the image is generated. Its edges lie within the 8x8 pixels of a
    latent."""
    mask = np.zeros((side, side), np.uint8)
    mask[5 : side - 13, 19 : side - 4] = 255
    return mask


def draw(network: str, key: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Draw a weight by its name: norms around 1, biases around 0, and matrices that keep scales."""
    name = f"{network}.{current_name(key)}"
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if len(shape) > 1:
        values *= np.prod(shape[1:]) ** -0.5
    else:
        values = 0.1 * values if key.endswith("bias") else 1 + 0.2 * values
    # A random UNet does not denoise. With a large output, rounding errors grow with each step.
    return np.asarray(values / (8 if name == "unet.conv_out.weight" else 1), np.float32)


def current_name(key: str) -> str:
    """Return the key without the prefix that transformers gives to text encoders."""
    return key.removeprefix("text_model.")


def digest(shapes: Shapes) -> str:
    """Return the digest of names and shapes, where a 1x1 convolution is a matrix."""
    lines = sorted(
        f"{current_name(key)} {list(shape[:2] if shape[2:] == (1, 1) else shape)}"
        for key, shape in shapes.items()
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
