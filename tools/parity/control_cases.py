"""List the ControlNets of the parity fixtures and the jobs with them.

The tools that ask PyTorch and the tests of the engine read the same list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

NETS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "edges": ("older", {}),
    "depth": ("older", {"flip_sin_to_cos": False, "freq_shift": 1, "attention_head_dim": 4}),
    "shapes": ("xl", {}),
}
"""It has the checkpoint that a net is for, and how its config differs from that of the UNet."""


@dataclass(frozen=True, kw_only=True)
class ControlCase:
    """It is a job."""

    which: int
    """It is the number of prompt, latents and control image."""
    net: str | None
    scale: float = 1.0
    start: float = 0.0
    end: float = 1.0


CASES: Final[Mapping[str, Sequence[ControlCase]]] = {
    "older": (
        ControlCase(which=0, net="edges"),
        ControlCase(which=1, net="depth", scale=0.5),
        ControlCase(which=0, net=None),
        ControlCase(which=1, net="edges", scale=0.7, start=0.2, end=0.8),
        ControlCase(which=0, net="depth", scale=1.5, end=0.5),
        ControlCase(which=1, net="edges", scale=2.0),
        ControlCase(which=0, net="depth", start=0.5),
        ControlCase(which=1, net=None),
    ),
    "xl": (ControlCase(which=0, net="shapes", scale=0.8, start=0.1, end=0.9),),
}
"""They are by the checkpoint. Each has 6 steps at guidance 3, and the negative prompt `blue`."""
