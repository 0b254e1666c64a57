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
    guidance: float = 3.0
    strength: float | None = None
    """The job has an init image, of which these latents are left. None: it has none."""
    is_heun: bool = False
    """Whether it has the scheduler of Heun, which calls the denoiser twice for each step."""


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
"""They are by the checkpoint. Each has 6 steps and the negative prompt `blue`."""
FURTHER_CASES: Final[Mapping[str, Sequence[ControlCase]]] = {
    "older": (
        ControlCase(which=0, net="edges", guidance=1.0),
        ControlCase(which=1, net="depth", strength=0.5, start=0.3, end=0.9),
        ControlCase(which=1, net="edges", start=0.2, end=0.8, is_heun=True),
        ControlCase(which=0, net="depth", scale=0.5, strength=1.0),
    ),
    "xl": (
        ControlCase(which=0, net="shapes", strength=0.7, end=0.5),
        ControlCase(which=1, net="shapes", guidance=1.0),
    ),
}
