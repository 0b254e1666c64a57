"""The second training stage: text encoder and UNet together, from captions and latents.

Input: encoded scenes and a tokenizer. Output: averaged weights, every few minutes. The stage uses
no pixels. A tenth of the captions are empty, for guidance, and 8 % name only part of the scene, for
negative prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import UNet2DConditionModel
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTokenizer

from tools.train_shapes.captions import caption, partial_caption
from tools.train_shapes.checkpoints import State
from tools.train_shapes.latents import EncodedScenes
from tools.train_shapes.networks import build_denoiser, build_scheduler, build_text_encoder
from tools.train_shapes.process_group import ProcessGroup
from tools.train_shapes.scenes import Scene
from tools.train_shapes.stage import StageConfig, run_stage
from tools.train_shapes.tokenizer import LENGTH

MAX_LEARNING_RATE = 1.5e-3
AVERAGE_DECAY = 0.9993
MAX_SNR = 5.0
"""Timesteps with a higher signal-to-noise ratio have a lower weight (min-SNR, Hang et al. 2023)."""
EMPTY_SHARE = 0.1
PARTIAL_SHARE = 0.08


class Networks(nn.Module):
    """The text encoder and the UNet as one module with one optimiser and one average."""

    def __init__(self, tokenizer: CLIPTokenizer) -> None:
        super().__init__()
        self.text_encoder: CLIPTextModel = build_text_encoder(
            vocabulary_size=len(tokenizer), start=tokenizer.bos_token_id, end=tokenizer.eos_token_id
        )
        self.unet: UNet2DConditionModel = build_denoiser()

    def forward(self, latents: Tensor, timesteps: Tensor, ids: Tensor) -> Tensor:
        """Predict v, (batch, 4, 16, 16)."""
        states = self.text_encoder(input_ids=ids).last_hidden_state
        return self.unet(latents, timesteps, states, return_dict=False)[0]


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """One batch: noisy latents and their target v, each (batch, 4, 16, 16), and the captions."""

    latents: Tensor
    timesteps: Tensor
    ids: Tensor
    target: Tensor
    weight: Tensor


class BatchSampler:
    """The sampler makes the batch of a step from its number alone, so a restart repeats it."""

    def __init__(
        self, data: EncodedScenes, tokenizer: CLIPTokenizer, *, batch: int, seed: int
    ) -> None:
        self._data = data
        self._tokenizer = tokenizer
        self._batch = batch
        self._seed = seed
        self._signal_part = build_scheduler().alphas_cumprod

    def lesson(self, step: int) -> TrainingBatch:
        """Return random scenes, and a timestep from each of `batch` equal schedule parts."""
        rng = np.random.default_rng((self._seed, 2, step))
        chance = torch.Generator().manual_seed(int(rng.integers(2**62)))
        rows = torch.from_numpy(rng.integers(len(self._data.scenes), size=self._batch))
        captions = [caption_of(self._data.scenes[int(row)], rng) for row in rows]
        ids = self._tokenizer(
            captions, padding="max_length", max_length=LENGTH, return_tensors="pt"
        ).input_ids
        slices = torch.arange(self._batch) + torch.rand(self._batch, generator=chance)
        times = (slices * len(self._signal_part) / self._batch).long()
        mean, deviation = self._data.mean[rows], self._data.deviation[rows]
        clean = mean + deviation * torch.randn(mean.shape, generator=chance)
        noise = torch.randn(clean.shape, generator=chance)
        part = self._signal_part[times].view(-1, 1, 1, 1)
        return TrainingBatch(
            latents=part.sqrt() * clean + (1 - part).sqrt() * noise,
            timesteps=times,
            ids=ids,
            # Progressive Distillation (Salimans and Ho, 2022), appendix D.
            target=part.sqrt() * noise - (1 - part).sqrt() * clean,
            # Almost noiseless latents teach little, but their error in v is large.
            weight=(MAX_SNR * (1 - part) / part).clamp(max=1).view(-1),
        )


def train_denoiser(
    sampler: BatchSampler,
    networks: Networks,
    file: Path,
    *,
    minutes: float,
    group: ProcessGroup,
    export_average: Callable[[State], None],
) -> None:
    """Train `networks`, or resume; they end with averaged weights.

    `export_average` gets the averaged weights at every save.
    """
    device = next(networks.parameters()).device

    def loss(step: int) -> Tensor:
        lesson = sampler.lesson(step * group.size + group.rank)
        # On a CPU, casting costs networks this narrow more time than bfloat16 saves.
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            predicted = networks(
                lesson.latents.to(device), lesson.timesteps.to(device), lesson.ids.to(device)
            )
        error = (predicted.float() - lesson.target.to(device)).square().mean(dim=(1, 2, 3))
        return (lesson.weight.to(device) * error).mean()

    config = StageConfig(
        name="denoiser",
        minutes=minutes,
        max_learning_rate=MAX_LEARNING_RATE,
        average_decay=AVERAGE_DECAY,
    )
    run_stage(networks, loss, config, file, group=group, on_save=export_average)


def caption_of(scene: Scene, rng: np.random.Generator) -> str:
    """Return a caption of the scene: a full one, a partial one, or an empty one."""
    chance = rng.random()
    if chance < EMPTY_SHARE:
        return ""
    if chance < EMPTY_SHARE + PARTIAL_SHARE:
        return partial_caption(scene, rng)
    return caption(scene, rng)
