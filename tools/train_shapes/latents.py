"""The training set of the second stage: scenes and their latents, encoded once.

The latents are whitened. The whitening is folded into the 1x1 convolutions of the autoencoder, so
that a reader of the checkpoint needs no statistics and `scaling_factor` is 1. This module does not
use captions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor
from tqdm import tqdm

from tools.train_shapes.autoencoder import to_signal
from tools.train_shapes.process_group import ProcessGroup
from tools.train_shapes.scenes import Scene, draw, sample_jitter, sample_scene, split

SCENES = 24_000
_IMAGES_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class EncodedScenes:
    """Scenes with their posterior means and deviations, each (scenes, 4, 16, 16)."""

    mean: Tensor
    deviation: Tensor
    scenes: list[Scene]


def encode_scenes(
    autoencoder: AutoencoderKL, path: Path, *, seed: int, group: ProcessGroup
) -> EncodedScenes:
    """Encode every scene, or read what an earlier run encoded, and fold the whitening."""
    data = read_or_encode(autoencoder, path, seed=seed, group=group)
    mean, deviation = data.mean, data.deviation
    shift = mean.mean(dim=(0, 2, 3))
    scale = (mean.var(dim=(0, 2, 3)) + deviation.square().mean(dim=(0, 2, 3))).sqrt()
    fold_whitening(autoencoder, shift=shift, scale=scale)
    column = (1, -1, 1, 1)
    return EncodedScenes(
        mean=(mean - shift.view(column)) / scale.view(column),
        deviation=deviation / scale.view(column),
        scenes=data.scenes,
    )


def read_or_encode(
    autoencoder: AutoencoderKL, path: Path, *, seed: int, group: ProcessGroup
) -> EncodedScenes:
    """Encode every scene, or read what an earlier run encoded, as the autoencoder has it."""
    rng = np.random.default_rng((seed, 1))
    trained = split(held_out=False)
    scenes = [sample_scene(rng, trained) for _ in range(SCENES)]
    if group.is_leader and not path.exists():
        images = np.stack([draw(scene, sample_jitter(rng)) for scene in scenes])
        mean, deviation = _encode(autoencoder, images)
        torch.save({"mean": mean, "deviation": deviation}, path)
    group.barrier()
    saved = torch.load(path, weights_only=True)
    return EncodedScenes(mean=saved["mean"], deviation=saved["deviation"], scenes=scenes)


@torch.no_grad()
def fold_whitening(autoencoder: AutoencoderKL, *, shift: Tensor, scale: Tensor) -> None:
    """Let the encoder return (latent - shift) / scale and the decoder accept it; both are (4,)."""
    into, out_of = autoencoder.quant_conv, autoencoder.post_quant_conv
    channels = len(scale)
    shift, scale = shift.to(into.weight), scale.to(into.weight)
    into.weight[:channels] /= scale.view(-1, 1, 1, 1)
    into.bias[:channels] = (into.bias[:channels] - shift) / scale
    # The other channels are the logarithm of the variance.
    into.bias[channels:] -= 2 * scale.log()
    out_of.bias += out_of.weight[:, :, 0, 0] @ shift
    out_of.weight *= scale.view(1, -1, 1, 1)


@torch.no_grad()
def _encode(autoencoder: AutoencoderKL, images: np.ndarray) -> tuple[Tensor, Tensor]:
    device = next(autoencoder.parameters()).device
    means, deviations = [], []
    for start in tqdm(range(0, len(images), _IMAGES_AT_ONCE), desc="encode"):
        signal = to_signal(images[start : start + _IMAGES_AT_ONCE]).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            posterior = autoencoder.encode(signal).latent_dist
        means.append(posterior.mean.float().cpu())
        deviations.append(posterior.std.float().cpu())
    return torch.cat(means), torch.cat(deviations)
