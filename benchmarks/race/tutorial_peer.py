"""The peer with the tutorial's pipeline: `FlaxStableDiffusionPipeline` of diffusers 0.39.0,
replicated and sharded.

The pipeline reads only msgpack, so the checkpoint's torch weights are converted in memory. One call
has one step count, and it compiles for each count that it has not seen.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from peer import RaceConfig, serve

config = RaceConfig.from_argument()
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={config.devices}"

import jax
import numpy as np
import torch
from diffusers import (
    FlaxAutoencoderKL,
    FlaxDDIMScheduler,
    FlaxStableDiffusionPipeline,
    FlaxUNet2DConditionModel,
)
from diffusers.models.modeling_flax_pytorch_utils import convert_pytorch_state_dict_to_flax
from flax.jax_utils import replicate
from flax.training.common_utils import shard
from safetensors.torch import load_file
from transformers import (  # names of transformers 4
    CLIPTextConfig,
    CLIPTokenizerFast,
    FlaxCLIPTextModel,
)


def network(kind: Any, part: str) -> tuple[Any, Any]:
    """Return a Flax model of diffusers and its parameters, from a part of the checkpoint."""
    folder = config.checkpoint / part
    model = kind.from_config(kind.load_config(folder))
    weights = load_file(folder / "diffusion_pytorch_model.safetensors")
    return model, convert_pytorch_state_dict_to_flax(weights, model)


def text_encoder(scratch: Path) -> tuple[Any, Any]:
    """Return the Flax text encoder and its parameters.

    This old transformers expects a torch file whose names have the prefix `text_model.`.
    """
    folder = config.checkpoint / "text_encoder"
    weights = load_file(folder / "model.safetensors")
    scratch.mkdir(parents=True, exist_ok=True)
    old = {
        f"text_model.{name.removeprefix('text_model.')}": w.float() for name, w in weights.items()
    }
    torch.save(old, scratch / "pytorch_model.bin")
    CLIPTextConfig.from_pretrained(folder).save_pretrained(scratch)
    model = FlaxCLIPTextModel.from_pretrained(scratch, from_pt=True)
    return model, model.params


def load(scratch: Path) -> tuple[FlaxStableDiffusionPipeline, Any]:
    unet, unet_params = network(FlaxUNet2DConditionModel, "unet")
    vae, vae_params = network(FlaxAutoencoderKL, "vae")
    text, text_params = text_encoder(scratch)
    scheduler = FlaxDDIMScheduler.from_config(
        FlaxDDIMScheduler.load_config(config.checkpoint / "scheduler")
    )
    pipeline = FlaxStableDiffusionPipeline(
        vae=vae,
        text_encoder=text,
        tokenizer=CLIPTokenizerFast.from_pretrained(config.checkpoint / "tokenizer"),
        unet=unet,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
    )
    params = {
        "unet": unet_params,
        "vae": vae_params,
        "text_encoder": text_params,
        "scheduler": scheduler.create_state(),
    }
    return pipeline, replicate(params)


def main() -> None:
    pipeline, params = load(config.noise.parent / "tutorial-text")
    tokens = shard(pipeline.prepare_inputs(config.prompts()))
    keys = jax.random.split(jax.random.PRNGKey(0), config.devices)
    latents = shard(config.latents().transpose(0, 3, 1, 2))

    def generate(steps: Sequence[int]) -> Any:
        [count] = set(steps)
        images = pipeline(
            tokens,
            params,
            keys,
            num_inference_steps=count,
            guidance_scale=config.guidance,
            latents=latents,
            jit=True,
        ).images
        images = np.asarray(images, np.float32).reshape(config.batch, *images.shape[-3:])
        return (images * 255).round().astype(np.uint8)

    serve(generate)


if __name__ == "__main__":
    main()
