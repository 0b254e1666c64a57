"""The names and shapes of Stable Diffusion 1.4's weights, without its weights.

Goes in: nothing. Comes out: configs, parameter counts and digests, as JSON.
"""

import hashlib

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

SD14 = {
    "text_encoder": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
    },
    "unet": {
        "attention_head_dim": 8,
        "cross_attention_dim": 768,
        "down_block_types": [*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"],
        "sample_size": 64,
        "up_block_types": ["UpBlock2D", *["CrossAttnUpBlock2D"] * 3],
    },
    "vae": {
        "block_out_channels": [128, 256, 512, 512],
        "down_block_types": ["DownEncoderBlock2D"] * 4,
        "layers_per_block": 2,
        "sample_size": 512,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
    },
}


def full_size() -> dict[str, dict[str, object]]:
    """Of Stable Diffusion 1.4: the configs, and a digest of every weight's name and shape."""
    with torch.device("meta"):
        networks = {
            "text_encoder": CLIPTextModel(CLIPTextConfig(**SD14["text_encoder"])),
            "unet": UNet2DConditionModel(**SD14["unet"]),
            "vae": AutoencoderKL(**SD14["vae"]),
        }
    found: dict[str, dict[str, object]] = {}
    for name, network in networks.items():
        weights = {key.removeprefix("text_model."): w for key, w in network.named_parameters()}
        lines = [f"{key} {_without_1x1(weights[key])}" for key in sorted(weights)]
        found[name] = {
            "config": SD14[name],
            "parameters": sum(weight.numel() for weight in weights.values()),
            "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        }
    return found


def _without_1x1(weight: torch.Tensor) -> list[int]:
    return list(weight.shape[:2] if weight.shape[2:] == (1, 1) else weight.shape)
