"""Run a published UNet with random weights in PyTorch; save its files, an input and an output.

    torchenv/bin/python -m tools.parity.full_torch sdxl FOLDER 32

Input: a model of `tools.parity.published`, a folder and a latent size. Output: config.json,
half-precision shards and `answers.safetensors` in the folder, and one line of JSON.
"""

import json
import resource
import sys
import time
from pathlib import Path

import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import save_file

from tools.parity.published import PUBLISHED

_MAX_SHARD_WEIGHTS = 400_000_000


def main(model: str, folder: Path, size: int) -> None:
    config = PUBLISHED[model]["unet"]
    with torch.device("meta"):
        unet = UNet2DConditionModel(**config)
    unet = unet.to_empty(device="cpu").eval()
    draw_weights(unet, torch.Generator().manual_seed(1))
    unet.save_config(folder)
    save_shards(unet, folder)
    inputs = draw_inputs(config, size, torch.Generator().manual_seed(2))
    added = {"text_embeds": inputs.get("pooled"), "time_ids": inputs.get("time_ids")}
    conditions = {"added_cond_kwargs": added} if "pooled" in inputs else {}
    started = time.perf_counter()
    with torch.no_grad():
        out = unet(inputs["latents"], inputs["times"], inputs["text"], **conditions).sample
    seconds = time.perf_counter() - started
    save_file({**inputs, "out": out}, folder / "answers.safetensors")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    parameters = sum(weight.numel() for weight in unet.parameters())
    print(json.dumps({"parameters": parameters, "seconds": seconds, "peak_bytes": peak}))


def draw_weights(unet: torch.nn.Module, generator: torch.Generator) -> None:
    """Draw every weight at random; ones or zeros would hide swapped weights."""
    with torch.no_grad():
        for name, weight in unet.named_parameters():
            weight.normal_(generator=generator)
            if weight.ndim > 1:
                weight.mul_(weight[0].numel() ** -0.5)
            elif name.endswith("bias"):
                weight.mul_(0.1)
            else:
                weight.mul_(0.2).add_(1)
            weight.copy_(weight.half())


def save_shards(unet: torch.nn.Module, folder: Path) -> None:
    """Save the weights in half precision, one shard at a time, to hold no second copy of all."""
    shards: list[list[str]] = [[]]
    left = _MAX_SHARD_WEIGHTS
    weights = dict(unet.named_parameters())
    for name, weight in weights.items():
        if left < weight.numel():
            shards.append([])
            left = _MAX_SHARD_WEIGHTS
        shards[-1].append(name)
        left -= weight.numel()
    for index, names in enumerate(shards, start=1):
        file = f"diffusion_pytorch_model-{index:05}-of-{len(shards):05}.safetensors"
        save_file({name: weights[name].detach().half() for name in names}, folder / file)


def draw_inputs(
    config: dict[str, object], size: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    inputs = {
        "latents": draw(1, 4, size, size),
        "times": torch.tensor([481.0]),
        "text": draw(1, 77, int(str(config["cross_attention_dim"]))),
    }
    if config.get("addition_embed_type"):
        side = 8.0 * size
        inputs["pooled"] = draw(1, 1280)
        inputs["time_ids"] = torch.tensor([[side, side, 0.0, 0.0, side, side]])
    return inputs


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
