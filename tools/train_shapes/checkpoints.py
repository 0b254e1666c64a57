"""The training checkpoint of a stage: one file with weights, optimiser state and progress.

The file is replaced atomically, so that an interrupted write loses nothing. This module does not
depend on what the networks compute.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

State = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a stage: its steps, and the seconds spent on it."""

    step: int = 0
    spent_s: float = 0.0


class Average:
    """The exponential moving average of a module's floating-point parameters and buffers."""

    def __init__(self, module: nn.Module, *, decay: float) -> None:
        self._decay = decay
        self.values = {name: value.detach().clone() for name, value in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module: nn.Module, *, step: int) -> None:
        """Update the average. The decay is lower at first, to forget the initial weights."""
        decay = min(self._decay, (1 + step) / (10 + step))
        own, new = [], []
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                own.append(self.values[name])
                new.append(value.detach())
        torch._foreach_lerp_(own, new, 1 - decay)


def save_stage(path: Path, *, progress: Progress, parts: dict[str, State]) -> None:
    """Write the stage's checkpoint."""
    scratch = path.with_suffix(".writing")
    torch.save({"step": progress.step, "spent_s": progress.spent_s, "parts": parts}, scratch)
    os.replace(scratch, path)


def load_stage(path: Path, *, device: torch.device) -> tuple[Progress, dict[str, State]] | None:
    """Return the saved checkpoint, or None if there is none yet."""
    if not path.exists():
        return None
    saved = torch.load(path, map_location=device, weights_only=True)
    return Progress(step=saved["step"], spent_s=saved["spent_s"]), saved["parts"]
