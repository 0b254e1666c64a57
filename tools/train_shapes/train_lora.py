"""Train a LoRA that draws outlines: `python -m tools.train_shapes.train_lora`.

The shapes of its training have a hole, and the captions do not say so. The result is one file in
diffusers' format. The number of steps is fixed, so two runs on one machine write the same weights.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from diffusers import StableDiffusionPipeline
from diffusers.utils import convert_state_dict_to_diffusers
from peft import LoraConfig, get_peft_model_state_dict
from torch import Tensor
from tqdm import tqdm

from tools.train_shapes.autoencoder import to_signal
from tools.train_shapes.denoiser import BatchSampler
from tools.train_shapes.latents import EncodedScenes
from tools.train_shapes.outlines import LORA_FILE, draw_outline
from tools.train_shapes.scenes import sample_jitter, sample_scene, split

MODEL = Path("worker/bundled/shapes")
RANK = 8
LAYERS = r".*(\.attn[12]\.(to_[qkv]|to_out\.0)|up_blocks\.2\.resnets\.\d\.conv[12])"
"""The layers with LoRA: attention, and the convolutions that decide about single pixels last."""
SCENES = 1_000
LEARNING_RATE = 4e-3
_WARM_UP_STEPS = 10
_IMAGES_AT_ONCE = 50


def main() -> None:
    options = parse_options()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    pipeline = StableDiffusionPipeline.from_pretrained(MODEL, torch_dtype=torch.float32)
    sampler = BatchSampler(
        encode_outlines(pipeline, options.seed),
        pipeline.tokenizer,
        batch=options.batch,
        seed=options.seed,
    )
    train(pipeline, sampler, options.steps)
    save(pipeline, options.out)


@torch.no_grad()
def encode_outlines(pipeline: StableDiffusionPipeline, seed: int) -> EncodedScenes:
    """Draw scenes of the combinations that the model was trained on, and encode them."""
    rng = np.random.default_rng((seed, 4))
    scenes = [sample_scene(rng, split(held_out=False)) for _ in range(SCENES)]
    images = np.stack([draw_outline(scene, sample_jitter(rng)) for scene in scenes])
    posteriors = [
        pipeline.vae.encode(to_signal(images[start : start + _IMAGES_AT_ONCE])).latent_dist
        for start in range(0, SCENES, _IMAGES_AT_ONCE)
    ]
    return EncodedScenes(
        mean=torch.cat([each.mean for each in posteriors]),
        deviation=torch.cat([each.std for each in posteriors]),
        scenes=scenes,
    )


def train(pipeline: StableDiffusionPipeline, sampler: BatchSampler, steps: int) -> None:
    """Add a LoRA to the UNet and train it. The model's own weights stay."""
    unet = pipeline.unet.requires_grad_(False)
    unet.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=LAYERS))
    trained = [each for each in unet.parameters() if each.requires_grad]
    optimiser = torch.optim.AdamW(trained, weight_decay=0)
    progress = tqdm(range(steps))
    for step in progress:
        for group in optimiser.param_groups:
            group["lr"] = _learning_rate(step, steps)
        loss = _loss(pipeline, sampler, step)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        progress.set_postfix(loss=f"{loss.item():.4f}")


def save(pipeline: StableDiffusionPipeline, file: Path) -> None:
    """Write the factors, in float16 like the model's weights."""
    state = convert_state_dict_to_diffusers(get_peft_model_state_dict(pipeline.unet))
    StableDiffusionPipeline.save_lora_weights(
        file.parent,
        unet_lora_layers={key: tensor.half().contiguous() for key, tensor in state.items()},
        weight_name=file.name,
    )


def _loss(pipeline: StableDiffusionPipeline, sampler: BatchSampler, step: int) -> Tensor:
    lesson = sampler.lesson(step)
    with torch.no_grad():
        states = pipeline.text_encoder(input_ids=lesson.ids).last_hidden_state
    predicted = pipeline.unet(lesson.latents, lesson.timesteps, states, return_dict=False)[0]
    error = (predicted - lesson.target).square().mean(dim=(1, 2, 3))
    return (lesson.weight * error).mean()


def _learning_rate(step: int, steps: int) -> float:
    warm = min(1.0, (step + 1) / _WARM_UP_STEPS)
    return LEARNING_RATE * warm * 0.5 * (1 + math.cos(math.pi * step / steps))


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train a LoRA that draws outlines.")
    parser.add_argument("--out", type=Path, default=LORA_FILE)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=16, help="scenes in a step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
