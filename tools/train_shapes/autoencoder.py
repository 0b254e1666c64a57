"""The first training stage: an AutoencoderKL between images and latents.

The stage draws its images as it needs them and returns the trained autoencoder. It needs neither
captions nor diffusion. Half of the images show several shapes, because edges train the autoencoder
and flat backgrounds do not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor
from torch.nn import functional

from tools.train_shapes.networks import build_autoencoder
from tools.train_shapes.process_group import ProcessGroup
from tools.train_shapes.scenes import (
    ImageArray,
    draw,
    draw_crowd,
    sample_jitter,
    sample_scene,
    split,
)
from tools.train_shapes.stage import StageConfig, run_stage

MAX_LEARNING_RATE = 2e-3
BATCH = 8
EDGE_WEIGHT = 4.0
KL_WEIGHT = 3e-4
AVERAGE_DECAY = 0.995


def train_autoencoder(
    work: Path, *, minutes: float, device: torch.device, seed: int, group: ProcessGroup
) -> AutoencoderKL:
    """Train the autoencoder, or resume its training, and return it with averaged weights."""
    model = build_autoencoder().to(device)
    # All processes have the same weights, and from here different posterior samples.
    torch.manual_seed(seed + group.rank)

    def loss(step: int) -> Tensor:
        images = draw_batch(np.random.default_rng((seed, step, group.rank)), BATCH // group.size)
        return reconstruction_loss(model, to_signal(images).to(device))

    config = StageConfig(
        name="autoencoder",
        minutes=minutes,
        max_learning_rate=MAX_LEARNING_RATE,
        average_decay=AVERAGE_DECAY,
        weight_decay=1e-4,
    )
    run_stage(model, loss, config, work / "autoencoder.pt", group=group)
    return model


def reconstruction_loss(model: AutoencoderKL, images: Tensor) -> Tensor:
    """Return absolute plus squared error, higher near edges, plus a small KL divergence."""
    with torch.autocast(images.device.type, torch.bfloat16):
        posterior = model.encode(images).latent_dist
        drawn = model.decode(posterior.sample()).sample
    difference = drawn.float() - images
    weight = 1 + EDGE_WEIGHT * edges(images)
    error = (weight * (difference.abs() + difference.square())).mean()
    divergence = 0.5 * (posterior.mean.square() + posterior.var - 1 - posterior.logvar).mean()
    return error + KL_WEIGHT * divergence


def edges(images: Tensor) -> Tensor:
    """Return 1 within two pixels of an edge, else 0; (batch, 1, side, side)."""
    smooth = functional.avg_pool2d(
        functional.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1
    )
    rough = (images - smooth).abs().amax(dim=1, keepdim=True)
    return functional.max_pool2d((rough > 0.03).float(), 3, stride=1, padding=1)


def draw_batch(rng: np.random.Generator, count: int) -> ImageArray:
    """Draw scenes, and images of several shapes, in equal parts; (count, side, side, 3)."""
    trained = split(held_out=False)
    plain = [draw(sample_scene(rng, trained), sample_jitter(rng)) for _ in range(count // 2)]
    return np.stack([*plain, *(draw_crowd(rng) for _ in range(count - len(plain)))])


def to_signal(images: ImageArray) -> Tensor:
    """Convert bytes (batch, side, side, 3) to floats in -1..1 (batch, 3, side, side)."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
