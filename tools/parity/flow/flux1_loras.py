"""Write LoRA files for the tiny FLUX.1, in the formats that diffusers reads, on both sides."""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tools.parity.flow.flux1_case import CLIP, TRANSFORMER

RANK: Final = 4
WIDTH: Final = TRANSFORMER["num_attention_heads"] * TRANSFORMER["attention_head_dim"]
_INNER, _WAVES = 4 * WIDTH, 256
_POOLED, _PACKED = TRANSFORMER["pooled_projection_dim"], TRANSFORMER["in_channels"]
_CLIP, _CLIP_INNER = CLIP["hidden_size"], CLIP["intermediate_size"]
_IN_DOUBLE_BLOCKS: Final = {
    "img_mod.lin": (6 * WIDTH, WIDTH),
    "txt_mod.lin": (6 * WIDTH, WIDTH),
    "img_attn.qkv": (3 * WIDTH, WIDTH),
    "txt_attn.qkv": (3 * WIDTH, WIDTH),
    "img_attn.proj": (WIDTH, WIDTH),
    "txt_attn.proj": (WIDTH, WIDTH),
    "img_mlp.0": (_INNER, WIDTH),
    "img_mlp.2": (WIDTH, _INNER),
    "txt_mlp.0": (_INNER, WIDTH),
    "txt_mlp.2": (WIDTH, _INNER),
}
_IN_SINGLE_BLOCKS: Final = {
    "modulation.lin": (3 * WIDTH, WIDTH),
    "linear1": (3 * WIDTH + _INNER, WIDTH),
    "linear2": (WIDTH, WIDTH + _INNER),
}
_ORIGINAL: Final = {
    f"{kind}.{number}.{name}": shape
    for kind, layers in (("double_blocks", _IN_DOUBLE_BLOCKS), ("single_blocks", _IN_SINGLE_BLOCKS))
    for number in range(2)
    for name, shape in layers.items()
}
LAYERS: Final[Mapping[str, Mapping[str, tuple[int, int]]]] = {
    "diffusers": {
        "transformer_blocks.0.attn.to_q": (WIDTH, WIDTH),
        "transformer_blocks.1.attn.add_v_proj": (WIDTH, WIDTH),
        "transformer_blocks.0.attn.to_add_out": (WIDTH, WIDTH),
        "transformer_blocks.1.ff_context.net.0.proj": (_INNER, WIDTH),
        "transformer_blocks.0.norm1.linear": (6 * WIDTH, WIDTH),
        "single_transformer_blocks.0.attn.to_v": (WIDTH, WIDTH),
        "single_transformer_blocks.1.proj_mlp": (_INNER, WIDTH),
        "single_transformer_blocks.1.proj_out": (WIDTH, WIDTH + _INNER),
        "context_embedder": (WIDTH, TRANSFORMER["joint_attention_dim"]),
        "x_embedder": (WIDTH, _PACKED),
        "time_text_embed.text_embedder.linear_1": (WIDTH, _POOLED),
        "time_text_embed.guidance_embedder.linear_2": (WIDTH, WIDTH),
        "norm_out.linear": (2 * WIDTH, WIDTH),
        "proj_out": (_PACKED, WIDTH),
    },
    "kohya": _ORIGINAL,
    "one_trainer": {
        "transformer_blocks.1.attn.to_k": (WIDTH, WIDTH),
        "transformer_blocks.0.attn.to_out.0": (WIDTH, WIDTH),
        "transformer_blocks.1.attn.add_q_proj": (WIDTH, WIDTH),
        "single_transformer_blocks.1.attn.to_q": (WIDTH, WIDTH),
        "time_text_embed.timestep_embedder.linear_1": (WIDTH, _WAVES),
        "norm_out.linear": (2 * WIDTH, WIDTH),
    },
    "peft": {**_ORIGINAL, "final_layer.linear": (_PACKED, WIDTH)},
    "x_flux": {
        "double_blocks.0.processor.qkv_lora1": (3 * WIDTH, WIDTH),
        "double_blocks.1.processor.qkv_lora2": (3 * WIDTH, WIDTH),
        "double_blocks.1.processor.proj_lora1": (WIDTH, WIDTH),
        "double_blocks.0.processor.proj_lora2": (WIDTH, WIDTH),
        "single_blocks.1.processor.qkv_lora": (3 * WIDTH, WIDTH),
        "single_blocks.0.processor.proj_lora": (WIDTH, WIDTH + _INNER),
    },
    "clip": {
        "text_model.encoder.layers.0.self_attn.q_proj": (_CLIP, _CLIP),
        "text_model.encoder.layers.1.self_attn.out_proj": (_CLIP, _CLIP),
        "text_model.encoder.layers.1.mlp.fc1": (_CLIP_INNER, _CLIP),
    },
}
"""By file and layer: the outputs and the inputs."""
_FORMATS: Final[Mapping[str, tuple[str, str, str]]] = {
    "diffusers": ("transformer.", "lora_A", "lora_B"),
    "kohya": ("lora_unet_", "lora_down", "lora_up"),
    "one_trainer": ("lora_transformer_", "lora_down", "lora_up"),
    "peft": ("base_model.model.", "lora_A", "lora_B"),
    "x_flux": ("", "down", "up"),
    "clip": ("lora_te1_", "lora_down", "lora_up"),
}
"""By file: the beginning of its keys, and how it names the two factors."""
_COMFY: Final = "double_blocks.0.img_mod.lin"
"""The file in kohya's format has this layer as ComfyUI spells it."""
CASES: Final[Mapping[str, Mapping[str, float]]] = {
    "diffusers": {"diffusers": 1.0},
    "kohya": {"kohya": 0.6},
    "one_trainer": {"one_trainer": -1.0},
    "peft": {"peft": -0.4},
    "x_flux": {"x_flux": 1.0},
    "clip": {"clip": 1.0},
    "two": {"x_flux": 0.5, "diffusers": -1.0},
}
"""By name: the files of an image with their scales."""


def write_loras(folder: Path) -> None:
    """Write the files, `<name>.safetensors`."""
    for name, layers in LAYERS.items():
        prefix, down, up = _FORMATS[name]
        tensors: dict[str, NDArray[np.float32]] = {}
        for layer, (out, width) in layers.items():
            key = prefix + (layer.replace(".", "_") if prefix.endswith("_") else layer)
            if name == "kohya" and layer == _COMFY:
                key = f"diffusion_model.{layer}"
            tensors[f"{key}.{down}.weight"] = _draw(f"{name} {layer} down", (RANK, width))
            tensors[f"{key}.{up}.weight"] = _draw(f"{name} {layer} up", (out, RANK))
            if down == "lora_down":
                tensors[f"{key}.alpha"] = np.array(2.0 + len(layer) % 3, np.float32)
            elif name == "diffusers":
                tensors[f"{key}.alpha"] = np.array(
                    3.0, np.float32
                )  # diffusers mixes up unlike ones
        save_file(tensors, folder / f"{name}.safetensors")


def weights_of(name: str) -> int:
    """Return the number of weights that a file changes: a fused layer stands for several."""
    return sum(
        4 if each.endswith("linear1") else 3 if "qkv" in each else 1 for each in LAYERS[name]
    )


def _draw(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    return (0.2 * values).astype(np.float32)
