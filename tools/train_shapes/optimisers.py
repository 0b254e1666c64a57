"""The optimisers of the stages: AdamW, and Muon together with AdamW.

Input: a module. Output: an optimiser whose groups of parameters all take the same learning rate.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

BETAS = (0.9, 0.99)


class Optimiser(Protocol):
    """What a stage uses of an optimiser."""

    param_groups: list[dict[str, Any]]

    def step(self) -> Any:
        """Change the parameters by their gradients."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a state that `state_dict` returned."""


def adamw(module: nn.Module, weight_decay: float) -> Optimiser:
    """Return AdamW for all parameters."""
    return torch.optim.AdamW(
        module.parameters(), betas=BETAS, weight_decay=weight_decay, fused=True
    )


class MuonAndAdamw:
    """Muon (Jordan 2024) for the matrices inside blocks, AdamW for all other parameters.

    Muon's steps are scaled as large as those of AdamW are (Liu et al. 2025), so that both take the
    same learning rate.
    """

    def __init__(self, module: nn.Module, weight_decay: float) -> None:
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in module.named_parameters():
            inside = "layers." in name or "refiner." in name
            is_matrix = inside and parameter.ndim == 2 and "adaLN" not in name
            (matrices if is_matrix else others).append(parameter)
        self._muon = torch.optim.Muon(
            matrices, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        self._adamw = torch.optim.AdamW(others, betas=BETAS, weight_decay=weight_decay, fused=True)
        self.param_groups = [*self._muon.param_groups, *self._adamw.param_groups]

    def step(self) -> None:
        """Change the parameters by their gradients."""
        self._muon.step()
        self._adamw.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        self._muon.zero_grad(set_to_none)
        self._adamw.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {"muon": self._muon.state_dict(), "adamw": self._adamw.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a state that `state_dict` returned."""
        self._muon.load_state_dict(state["muon"])
        self._adamw.load_state_dict(state["adamw"])
        self.param_groups = [*self._muon.param_groups, *self._adamw.param_groups]
