"""The training of the second bundled model: text encoder and transformer together.

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
from diffusers import ZImageTransformer2DModel
from torch import Tensor, nn
from transformers import Qwen2Tokenizer, Qwen3Model

from tools.train_shapes.checkpoints import State
from tools.train_shapes.denoiser import caption_of
from tools.train_shapes.flow_networks import (
    CAPTION_TOKENS,
    SHIFT,
    build_qwen,
    build_transformer,
    predict,
)
from tools.train_shapes.latents import EncodedScenes
from tools.train_shapes.optimisers import MuonAndAdamw
from tools.train_shapes.process_group import ProcessGroup
from tools.train_shapes.qwen_tokenizer import as_chat
from tools.train_shapes.stage import StageConfig, run_stage

MAX_LEARNING_RATE = 2e-3
AVERAGE_DECAY = 0.9985
SPREAD = 1.2
"""Standard deviation of the logit of noise levels before their shift (Esser et al. 2024)."""


class FlowNetworks(nn.Module):
    """The text encoder and the transformer as one module with one optimiser and one average."""

    def __init__(self, tokenizer: Qwen2Tokenizer) -> None:
        super().__init__()
        self.text_encoder: Qwen3Model = build_qwen(vocabulary_size=len(tokenizer))
        self.transformer: ZImageTransformer2DModel = build_transformer()

    def forward(self, latents: Tensor, times: Tensor, ids: Tensor, used: Tensor) -> Tensor:
        """Predict latents minus noise, (batch, 4, 16, 16)."""
        # A token reads only those before it, so the padding behind them needs no mask.
        states = self.text_encoder(input_ids=ids, output_hidden_states=True).hidden_states[-2]
        return predict(self.transformer, latents, times, states, used)


@dataclass(frozen=True, kw_only=True)
class FlowBatch:
    """One batch: noisy latents and their target, each (batch, 4, 16, 16), and the captions."""

    latents: Tensor
    times: Tensor
    ids: Tensor
    used: Tensor
    target: Tensor


class FlowSampler:
    """The sampler makes the batch of a step from its number alone, so a restart repeats it."""

    def __init__(
        self, data: EncodedScenes, tokenizer: Qwen2Tokenizer, *, batch: int, seed: int
    ) -> None:
        self._data = data
        self._tokenizer = tokenizer
        self._batch = batch
        self._seed = seed
        self._known: dict[str, list[int]] = {}

    def lesson(self, step: int) -> FlowBatch:
        """Return random scenes, and a noise level from each of `batch` equally likely ranges."""
        rng = np.random.default_rng((self._seed, 2, step))
        chance = torch.Generator().manual_seed(int(rng.integers(2**62)))
        rows = torch.from_numpy(rng.integers(len(self._data.scenes), size=self._batch))
        ids, used = self.tokens([caption_of(self._data.scenes[int(row)], rng) for row in rows])
        shares = (torch.arange(self._batch) + torch.rand(self._batch, generator=chance)).clamp(
            min=1e-4
        ) / self._batch
        even = torch.sigmoid(SPREAD * torch.special.ndtri(shares))
        level = (SHIFT * even / (1 + (SHIFT - 1) * even)).view(-1, 1, 1, 1)
        mean, deviation = self._data.mean[rows], self._data.deviation[rows]
        clean = mean + deviation * torch.randn(mean.shape, generator=chance)
        noise = torch.randn(clean.shape, generator=chance)
        return FlowBatch(
            latents=(1 - level) * clean + level * noise,
            times=1 - level.flatten(),
            ids=ids,
            used=used,
            target=clean - noise,
        )

    def tokens(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        """Return ids and which are no padding, each (captions, 32)."""
        ids = torch.full((len(captions), CAPTION_TOKENS), self._tokenizer.pad_token_id)
        used = torch.zeros(ids.shape, dtype=torch.bool)
        for row, caption in enumerate(captions):
            if caption not in self._known:
                self._known[caption] = self._tokenizer(as_chat(caption)).input_ids
            known = self._known[caption]
            ids[row, : len(known)] = torch.tensor(known)
            used[row, : len(known)] = True
        return ids, used


def train_flow(
    sampler: FlowSampler,
    networks: FlowNetworks,
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
                lesson.latents.to(device),
                lesson.times.to(device),
                lesson.ids.to(device),
                lesson.used.to(device),
            )
        return (predicted.float() - lesson.target.to(device)).square().mean()

    config = StageConfig(
        name="transformer",
        minutes=minutes,
        max_learning_rate=MAX_LEARNING_RATE,
        average_decay=AVERAGE_DECAY,
    )
    run_stage(
        networks,
        loss,
        config,
        file,
        group=group,
        on_save=export_average,
        build_optimiser=MuonAndAdamw,
    )
