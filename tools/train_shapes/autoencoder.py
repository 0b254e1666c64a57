"""The first stage: pictures to latents and back.

Goes in: drawn pictures, made as they are needed. Comes out: an AutoencoderKL with sharp
edges. Knows nothing of captions or of diffusion. Half of its pictures are crowded, since
every shape's edge is a lesson and a flat background is not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor
from torch.nn import functional

from tools.train_shapes.crew import Crew
from tools.train_shapes.networks import build_autoencoder
from tools.train_shapes.scenes import (
    ImageArray,
    draw,
    draw_crowd,
    sample_jitter,
    sample_scene,
    split,
)
from tools.train_shapes.stage import WeightMapping, run_stage

HIGHEST_RATE = 2e-3
BATCH = 8
EDGE_WEIGHT = 4.0
KL_WEIGHT = 3e-4
AVERAGE_DECAY = 0.995


def train_autoencoder(
    work: Path, *, minutes: float, device: torch.device, seed: int, crew: Crew
) -> AutoencoderKL:
    """Trains, or goes on training, and returns the averaged weights."""
    model = build_autoencoder().to(device)
    # The same weights for everyone above, other posterior samples for each from here.
    torch.manual_seed(seed + crew.rank)

    def loss(step: int) -> Tensor:
        pictures = draw_batch(np.random.default_rng((seed, step, crew.rank)), BATCH // crew.size)
        return reconstruction_loss(model, to_signal(pictures).to(device))

    plan = WeightMapping(
        name="autoencoder",
        minutes=minutes,
        highest_rate=HIGHEST_RATE,
        average_decay=AVERAGE_DECAY,
        weight_decay=1e-4,
    )
    run_stage(model, loss, plan, work / "autoencoder.pt", crew=crew)
    return model


def reconstruction_loss(model: AutoencoderKL, pictures: Tensor) -> Tensor:
    """Absolute and squared error, heavier near edges, and a little divergence."""
    with torch.autocast(pictures.device.type, torch.bfloat16):
        posterior = model.encode(pictures).latent_dist
        drawn = model.decode(posterior.sample()).sample
    difference = drawn.float() - pictures
    weight = 1 + EDGE_WEIGHT * edges(pictures)
    error = (weight * (difference.abs() + difference.square())).mean()
    divergence = 0.5 * (posterior.mean.square() + posterior.var - 1 - posterior.logvar).mean()
    return error + KL_WEIGHT * divergence


def edges(pictures: Tensor) -> Tensor:
    """1 within two pixels of an edge, else 0; (batch, 1, side, side)."""
    smooth = functional.avg_pool2d(
        functional.pad(pictures, (1, 1, 1, 1), mode="replicate"), 3, stride=1
    )
    rough = (pictures - smooth).abs().amax(dim=1, keepdim=True)
    return functional.max_pool2d((rough > 0.03).float(), 3, stride=1, padding=1)


def draw_batch(rng: np.random.Generator, count: int) -> ImageArray:
    """Crowded and ordinary pictures in equal parts, (count, side, side, 3)."""
    trained = split(held_out=False)
    plain = [draw(sample_scene(rng, trained), sample_jitter(rng)) for _ in range(count // 2)]
    return np.stack([*plain, *(draw_crowd(rng) for _ in range(count - len(plain)))])


def to_signal(pictures: ImageArray) -> Tensor:
    """Bytes (batch, side, side, 3) to floats in -1..1 (batch, 3, side, side)."""
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1
