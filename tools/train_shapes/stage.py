"""One stage of training: a loop that lasts a number of minutes and survives a stop.

Goes in: a module, and a function from a step's number to a loss. Comes out: the module
with its averaged weights. Knows nothing of what is learnt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from tools.train_shapes.budget import Budget, learning_rate
from tools.train_shapes.checkpoints import Average, Progress, State, load_stage, save_stage

Loss = Callable[[int], Tensor]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one stage may take and how it learns."""

    name: str
    minutes: float
    highest_rate: float
    average_decay: float
    weight_decay: float = 0.01


def run_stage(
    module: nn.Module,
    loss: Loss,
    plan: Plan,
    file: Path,
    *,
    on_save: Callable[[State], None] = lambda _: None,
) -> None:
    """Trains, or goes on training, until the plan's minutes are over."""
    device = next(module.parameters()).device
    optimiser = torch.optim.AdamW(
        module.parameters(), plan.highest_rate, betas=(0.9, 0.99), weight_decay=plan.weight_decay
    )
    average = Average(module, decay=plan.average_decay)
    progress = Progress()
    if saved := load_stage(file, device=device):
        progress, parts = saved
        module.load_state_dict(parts["model"])
        optimiser.load_state_dict(parts["optimiser"])
        average.values = parts["average"]
    budget = Budget(total_s=60 * plan.minutes, spent_s=progress.spent_s)
    step, recent = progress.step, math.nan
    with tqdm(
        total=round(budget.total_s), initial=round(budget.spent_s), unit="s", desc=plan.name
    ) as bar:
        while not budget.is_over():
            rate = learning_rate(plan.highest_rate, step=step, fraction=budget.fraction())
            error = _take_step(module, loss(step), optimiser, rate)
            average.update(module, step=step)
            step += 1
            recent = error if math.isnan(recent) else recent + 0.01 * (error - recent)
            if step % 20 == 0:
                bar.set_postfix(step=step, loss=f"{recent:.4f}", refresh=False)
                bar.update(round(budget.elapsed_s()) - bar.n)
            if budget.is_save_due() or budget.is_over():
                progress = Progress(step=step, spent_s=budget.elapsed_s())
                parts = {
                    "model": module.state_dict(),
                    "optimiser": optimiser.state_dict(),
                    "average": average.values,
                }
                save_stage(file, progress=progress, parts=parts)
                on_save(average.values)
    module.load_state_dict(average.values)
    module.eval()


def _take_step(
    module: nn.Module, loss: Tensor, optimiser: torch.optim.Optimizer, rate: float
) -> float:
    for group in optimiser.param_groups:
        group["lr"] = rate
    loss.backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return loss.item()
