"""The second stage: text encoder and UNet together, from captions and latents.

Goes in: encoded scenes and a tokenizer. Comes out: averaged weights, handed on every few
minutes. Knows nothing of pixels. A tenth of the captions is empty, for guidance, and a
tenth names only part of its scene, for negative prompts.
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
from tools.train_shapes.crew import Crew
from tools.train_shapes.latents import EncodedScenes
from tools.train_shapes.networks import build_denoiser, build_scheduler, build_text_encoder
from tools.train_shapes.scenes import Scene
from tools.train_shapes.stage import WeightMapping, run_stage
from tools.train_shapes.tokenizer import LENGTH

HIGHEST_RATE = 1.5e-3
AVERAGE_DECAY = 0.9993
HIGHEST_SIGNAL = 5.0
"""Signal-to-noise ratio above which a time counts less (Hang et al., 2023, min-SNR)."""
EMPTY_PART = 0.1
PARTIAL_PART = 0.08


class Networks(nn.Module):
    """Both trained networks as one module, so that one optimiser and one average hold both."""

    def __init__(self, tokenizer: CLIPTokenizer) -> None:
        super().__init__()
        self.text_encoder: CLIPTextModel = build_text_encoder(
            vocabulary_size=len(tokenizer), start=tokenizer.bos_token_id, end=tokenizer.eos_token_id
        )
        self.unet: UNet2DConditionModel = build_denoiser()

    def forward(self, latents: Tensor, timesteps: Tensor, ids: Tensor) -> Tensor:
        """Predicts v, (batch, 4, 16, 16)."""
        states = self.text_encoder(input_ids=ids).last_hidden_state
        return self.unet(latents, timesteps, states, return_dict=False)[0]


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One batch: noisy latents and the v to predict, each (batch, 4, 16, 16), and its captions."""

    latents: Tensor
    timesteps: Tensor
    ids: Tensor
    target: Tensor
    weight: Tensor


class Teacher:
    """Makes the batch of any step from the step's number alone, so that a stop changes nothing."""

    def __init__(
        self, data: EncodedScenes, tokenizer: CLIPTokenizer, *, batch: int, seed: int
    ) -> None:
        self._data = data
        self._tokenizer = tokenizer
        self._batch = batch
        self._seed = seed
        self._signal_part = build_scheduler().alphas_cumprod

    def lesson(self, step: int) -> Lesson:
        """Scenes at random, one time from each of `batch` equal slices of the schedule."""
        rng = np.random.default_rng((self._seed, 2, step))
        chance = torch.Generator().manual_seed(int(rng.integers(2**62)))
        rows = torch.from_numpy(rng.integers(len(self._data.scenes), size=self._batch))
        captions = [_drop_words(self._data.scenes[int(row)], rng) for row in rows]
        ids = self._tokenizer(
            captions, padding="max_length", max_length=LENGTH, return_tensors="pt"
        ).input_ids
        slices = torch.arange(self._batch) + torch.rand(self._batch, generator=chance)
        times = (slices * len(self._signal_part) / self._batch).long()
        mean, deviation = self._data.mean[rows], self._data.deviation[rows]
        clean = mean + deviation * torch.randn(mean.shape, generator=chance)
        noise = torch.randn(clean.shape, generator=chance)
        part = self._signal_part[times].view(-1, 1, 1, 1)
        return Lesson(
            latents=part.sqrt() * clean + (1 - part).sqrt() * noise,
            timesteps=times,
            ids=ids,
            # Progressive Distillation (Salimans and Ho, 2022), appendix D.
            target=part.sqrt() * noise - (1 - part).sqrt() * clean,
            # Where hardly any noise is left there is nothing to learn and much to be wrong about.
            weight=(HIGHEST_SIGNAL * (1 - part) / part).clamp(max=1).view(-1),
        )


def train_denoiser(
    teacher: Teacher,
    networks: Networks,
    file: Path,
    *,
    minutes: float,
    crew: Crew,
    hand_on: Callable[[State], None],
) -> None:
    """Trains, or goes on training; `networks` ends with, and `hand_on` gets, averaged weights."""
    device = next(networks.parameters()).device

    def loss(step: int) -> Tensor:
        lesson = teacher.lesson(step * crew.size + crew.rank)
        # On a CPU, networks this narrow lose to casting what they gain from bfloat16.
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            predicted = networks(
                lesson.latents.to(device), lesson.timesteps.to(device), lesson.ids.to(device)
            )
        error = (predicted.float() - lesson.target.to(device)).square().mean(dim=(1, 2, 3))
        return (lesson.weight.to(device) * error).mean()

    plan = WeightMapping(
        name="denoiser", minutes=minutes, highest_rate=HIGHEST_RATE, average_decay=AVERAGE_DECAY
    )
    run_stage(networks, loss, plan, file, crew=crew, on_save=hand_on)


def _drop_words(scene: Scene, rng: np.random.Generator) -> str:
    chance = rng.random()
    if chance < EMPTY_PART:
        return ""
    if chance < EMPTY_PART + PARTIAL_PART:
        return partial_caption(scene, rng)
    return caption(scene, rng)
