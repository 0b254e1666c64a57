"""Write LoRA files for the tiny FLUX.2 klein, in the formats that diffusers reads. Both sides write
them."""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

RANK: Final = 4
_WIDTH, _INNER, _PACKED, _TEXT, _WAVES = 32, 96, 32, 48, 256
_SHAPES: Final[Mapping[str, tuple[int, int]]] = {
    "transformer_blocks.0.attn.to_q": (_WIDTH, _WIDTH),
    "transformer_blocks.1.attn.add_v_proj": (_WIDTH, _WIDTH),
    "transformer_blocks.0.attn.to_out.0": (_WIDTH, _WIDTH),
    "transformer_blocks.1.ff_context.linear_in": (2 * _INNER, _WIDTH),
    "single_transformer_blocks.0.attn.to_qkv_mlp_proj": (3 * _WIDTH + 2 * _INNER, _WIDTH),
    "single_transformer_blocks.1.attn.to_out": (_WIDTH, _WIDTH + _INNER),
    "context_embedder": (_WIDTH, _TEXT),
    "norm_out.linear": (2 * _WIDTH, _WIDTH),
    "double_blocks.0.img_attn.qkv": (3 * _WIDTH, _WIDTH),
    "double_blocks.1.txt_attn.qkv": (3 * _WIDTH, _WIDTH),
    "double_blocks.0.img_attn.proj": (_WIDTH, _WIDTH),
    "double_blocks.1.txt_attn.proj": (_WIDTH, _WIDTH),
    "double_blocks.0.img_mlp.0": (2 * _INNER, _WIDTH),
    "double_blocks.1.img_mlp.2": (_WIDTH, _INNER),
    "double_blocks.0.txt_mlp.0": (2 * _INNER, _WIDTH),
    "double_blocks.0.txt_mlp.2": (_WIDTH, _INNER),
    "single_blocks.1.linear1": (3 * _WIDTH + 2 * _INNER, _WIDTH),
    "single_blocks.0.linear2": (_WIDTH, _WIDTH + _INNER),
    "img_in": (_WIDTH, _PACKED),
    "txt_in": (_WIDTH, _TEXT),
    "time_in.in_layer": (_WIDTH, _WAVES),
    "time_in.out_layer": (_WIDTH, _WIDTH),
    "final_layer.linear": (_PACKED, _WIDTH),
    "double_stream_modulation_img.lin": (6 * _WIDTH, _WIDTH),
    "single_stream_modulation.lin": (3 * _WIDTH, _WIDTH),
}
"""The outputs and the inputs of each layer."""
_NAMES: Final = tuple(_SHAPES)
LAYERS: Final[Mapping[str, tuple[str, ...]]] = {
    "diffusers": _NAMES[:8],
    "ai_toolkit": (_NAMES[0], *_NAMES[9:]),
    "kohya": _NAMES[8:23],
}
"""By file: the layers that it changes."""
CASES: Final[Mapping[str, Mapping[str, float]]] = {
    "diffusers": {"diffusers": 1.0},
    "ai_toolkit": {"ai_toolkit": -0.7},
    "kohya": {"kohya": 0.8},
    "two": {"kohya": 0.5, "diffusers": -1.0},
}
"""By name: the files of an image with their scales."""


def write_loras(folder: Path) -> None:
    """Write the files, `<name>.safetensors`."""
    for name, layers in LAYERS.items():
        tensors: dict[str, NDArray[np.float32]] = {}
        for layer in layers:
            out, width = _SHAPES[layer]
            key, down, up = _keys(name, layer)
            tensors[f"{key}.{down}.weight"] = _draw(f"{name} {layer} down", (RANK, width))
            tensors[f"{key}.{up}.weight"] = _draw(f"{name} {layer} up", (out, RANK))
            if name == "kohya":
                tensors[f"{key}.alpha"] = np.array(2.0 + len(layer) % 3, np.float32)
        save_file(tensors, folder / f"{name}.safetensors")


def _keys(name: str, layer: str) -> tuple[str, str, str]:
    """Return the name of a layer in a file, and those of its two factors."""
    if name == "kohya":
        return f"lora_unet_{layer.replace('.', '_')}", "lora_down", "lora_up"
    prefix = "transformer" if name == "diffusers" else "diffusion_model"
    return f"{prefix}.{layer}", "lora_A", "lora_B"


def _draw(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    return (0.2 * values).astype(np.float32)
