"""One training stage: a loop that lasts a number of minutes and can be resumed.

Input: a module, and a function from a step's number to its loss. Output: the module with averaged
weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from tools.train_shapes.checkpoints import Average, Progress, State, load_stage, save_stage
from tools.train_shapes.optimisers import Optimiser, adamw
from tools.train_shapes.process_group import ProcessGroup
from tools.train_shapes.time_budget import TimeBudget, learning_rate

Loss = Callable[[int], Tensor]
BuildOptimiser = Callable[[nn.Module, float], Optimiser]
"""It gets the module and the weight decay."""


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """The length of a stage and its optimiser's settings."""

    name: str
    minutes: float
    max_learning_rate: float
    average_decay: float
    weight_decay: float = 0.01


def run_stage(
    module: nn.Module,
    loss: Loss,
    config: StageConfig,
    file: Path,
    *,
    group: ProcessGroup,
    on_save: Callable[[State], None] = lambda _: None,
    build_optimiser: BuildOptimiser = adamw,
) -> None:
    """Train the module, or resume its training, until the minutes are over."""
    optimiser = build_optimiser(module, config.weight_decay)
    average = Average(module, decay=config.average_decay)
    progress = _resume(file, module, optimiser, average)
    budget = TimeBudget(total_s=60 * config.minutes, spent_s=progress.spent_s)
    step, recent, spent_s = progress.step, math.nan, progress.spent_s
    bar = tqdm(
        total=round(budget.total_s),
        initial=round(spent_s),
        desc=config.name,
        disable=not group.is_leader,
    )
    while spent_s < budget.total_s:
        rate = learning_rate(config.max_learning_rate, step=step, fraction=spent_s / budget.total_s)
        error = _take_step(module, loss(step), optimiser, rate, group)
        average.update(module, step=step)
        step += 1
        recent = error if math.isnan(recent) else recent + 0.01 * (error - recent)
        spent_s = group.from_leader(budget.elapsed_s())
        if step % 20 == 0:
            bar.set_postfix(step=step, loss=f"{recent:.4f}", refresh=False)
            bar.update(round(spent_s) - bar.n)
        if group.is_leader and (budget.is_save_due() or spent_s >= budget.total_s):
            parts = {
                "model": module.state_dict(),
                "optimiser": optimiser.state_dict(),
                "average": average.values,
            }
            save_stage(file, progress=Progress(step=step, spent_s=spent_s), parts=parts)
            on_save(average.values)
    bar.close()
    module.load_state_dict(average.values)
    module.eval()


def _resume(file: Path, module: nn.Module, optimiser: Optimiser, average: Average) -> Progress:
    saved = load_stage(file, device=next(module.parameters()).device)
    if saved is None:
        return Progress()
    progress, parts = saved
    module.load_state_dict(parts["model"])
    optimiser.load_state_dict(parts["optimiser"])
    average.values = parts["average"]
    return progress


def _take_step(
    module: nn.Module,
    loss: Tensor,
    optimiser: Optimiser,
    rate: float,
    group: ProcessGroup,
) -> float:
    for parameters in optimiser.param_groups:
        parameters["lr"] = rate
    loss.backward()
    group.average_(parameter.grad for parameter in module.parameters())
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return float(loss.item())
