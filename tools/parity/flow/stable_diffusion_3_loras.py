"""Write LoRA files for the tiny Stable Diffusion 3, as diffusers writes them, on both sides."""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tools.parity.flow.stable_diffusion_3_case import CLIP, CLIP_2, TRANSFORMER

RANK: Final = 3
WIDTH: Final = TRANSFORMER["num_attention_heads"] * TRANSFORMER["attention_head_dim"]
_POOLED, _TEXT = TRANSFORMER["pooled_projection_dim"], TRANSFORMER["joint_attention_dim"]
LAYERS: Final[Mapping[str, Mapping[str, tuple[int, int]]]] = {
    "attention": {
        "transformer.transformer_blocks.0.attn.to_q": (WIDTH, WIDTH),
        "transformer.transformer_blocks.1.attn.to_out.0": (WIDTH, WIDTH),
        "transformer.transformer_blocks.0.attn.to_add_out": (WIDTH, WIDTH),
        "transformer.transformer_blocks.2.attn.add_v_proj": (WIDTH, WIDTH),
        "transformer.transformer_blocks.1.attn2.to_k": (WIDTH, WIDTH),
    },
    "others": {
        "transformer.transformer_blocks.0.norm1.linear": (9 * WIDTH, WIDTH),
        "transformer.transformer_blocks.2.norm1_context.linear": (2 * WIDTH, WIDTH),
        "transformer.transformer_blocks.1.ff.net.0.proj": (4 * WIDTH, WIDTH),
        "transformer.transformer_blocks.0.ff_context.net.2": (WIDTH, 4 * WIDTH),
        "transformer.context_embedder": (WIDTH, _TEXT),
        "transformer.time_text_embed.text_embedder.linear_1": (WIDTH, _POOLED),
        "transformer.time_text_embed.timestep_embedder.linear_2": (WIDTH, WIDTH),
        "transformer.norm_out.linear": (2 * WIDTH, WIDTH),
        "transformer.proj_out": (4 * TRANSFORMER["in_channels"], WIDTH),
    },
    "texts": {
        **{
            f"text_encoder.text_model.encoder.layers.{layer}": (CLIP["hidden_size"],) * 2
            for layer in ("0.self_attn.q_proj", "2.self_attn.out_proj")
        },
        "text_encoder_2.text_model.encoder.layers.1.self_attn.v_proj": (CLIP_2["hidden_size"],) * 2,
        "text_encoder_2.text_model.encoder.layers.1.mlp.fc1": (
            CLIP_2["intermediate_size"],
            CLIP_2["hidden_size"],
        ),
        "transformer.transformer_blocks.2.attn.to_v": (WIDTH, WIDTH),
    },
}
"""By file and layer: the outputs and the inputs."""
CASES: Final[Mapping[str, Mapping[str, float]]] = {
    "attention": {"attention": 1.0},
    "others": {"others": -0.7},
    "texts": {"texts": 1.5},
    "two": {"texts": 0.5, "attention": -1.0},
}
"""By name: the files of an image with their scales."""


def write_loras(folder: Path) -> None:
    """Write the files, `<name>.safetensors`."""
    for name, layers in LAYERS.items():
        tensors: dict[str, NDArray[np.float32]] = {}
        for layer, (out, width) in layers.items():
            tensors[f"{layer}.lora_A.weight"] = _draw(f"{name} {layer} down", (RANK, width))
            tensors[f"{layer}.lora_B.weight"] = _draw(f"{name} {layer} up", (out, RANK))
        save_file(tensors, folder / f"{name}.safetensors")


def _draw(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    return (0.25 * values).astype(np.float32)
