"""Names and shapes of the weights of published models, without the weights.

There is no input. The output is configs, parameter counts and digests, as JSON.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLFlux2,
    ControlNetModel,
    Flux2Transformer2DModel,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    UNet2DConditionModel,
    ZImageTransformer2DModel,
)
from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
from transformers import (
    CLIPConfig,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
)

from tools.parity.flow.published import FLOW_MODELS
from tools.parity.published import CONTROL_NETS, PUBLISHED


def _text_encoder(**config: Any) -> torch.nn.Module:
    if config.get("model_type") == "qwen3":
        return Qwen3Model(Qwen3Config(**config))
    if config.get("architectures") == ["CLIPTextModelWithProjection"]:
        return CLIPTextModelWithProjection(CLIPTextConfig(**config))
    return CLIPTextModel(CLIPTextConfig(**config))


def _text_encoder_2(**config: Any) -> torch.nn.Module:
    if config.get("model_type") == "t5":
        return T5EncoderModel(T5Config(**config))
    return CLIPTextModelWithProjection(CLIPTextConfig(**config))


NETWORKS: Mapping[str, Callable[..., torch.nn.Module]] = {
    "text_encoder": _text_encoder,
    "text_encoder_2": _text_encoder_2,
    "text_encoder_3": _text_encoder_2,
    "unet": UNet2DConditionModel,
    "controlnet": ControlNetModel,
    "transformer": ZImageTransformer2DModel,
    "vae": AutoencoderKL,
    "FluxTransformer2DModel": FluxTransformer2DModel,
    "SD3Transformer2DModel": SD3Transformer2DModel,
    "Flux2Transformer2DModel": Flux2Transformer2DModel,
    "AutoencoderKLFlux2": AutoencoderKLFlux2,
    "safety_checker": lambda **config: StableDiffusionSafetyChecker(CLIPConfig(**config)),
}


def full_size() -> dict[str, dict[str, dict[str, object]]]:
    """Return for each model and network its config and a digest of its weight names and shapes."""
    with torch.device("meta"):
        return {
            model: {name: _describe(name, config) for name, config in networks.items()}
            for model, networks in {**PUBLISHED, **CONTROL_NETS, **FLOW_MODELS}.items()
        }


def _describe(name: str, config: dict[str, object]) -> dict[str, object]:
    fields = {field: value for field, value in config.items() if field != "_class_name"}
    network = NETWORKS[str(config.get("_class_name", name))](**fields)
    weights = {
        key.removeprefix("text_model."): weight for key, weight in network.named_parameters()
    }
    # The statistics of FLUX.2's autoencoder, and the positions of Stable Diffusion 3, are buffers.
    weights |= {
        key: buffer
        for key, buffer in network.named_buffers()
        if key.startswith(("bn.running_", "pos_embed."))
    }
    lines = sorted(f"{key} {_without_1x1(weight)}" for key, weight in weights.items())
    return {
        "config": config,
        "parameters": sum(weight.numel() for weight in weights.values()),
        "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
    }


def _without_1x1(weight: torch.Tensor) -> list[int]:
    return list(weight.shape[:2] if weight.shape[2:] == (1, 1) else weight.shape)
