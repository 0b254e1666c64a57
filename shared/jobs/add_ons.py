"""Name the files that jobs choose and that only some workers of a model may hold: add-ons.

Input: names of LoRA and of ControlNets. Output: names of add-ons. Queues, messages of shards and
claims have them; a worker serves a queue only if it holds all its add-ons.
"""

from collections.abc import Iterable
from typing import Final, Protocol

_CONTROLNET: Final = "controlnet="
"""The character `=` occurs in no name of a LoRA."""


class ChosenNames(Protocol):
    """What a job chooses: see `JobRequest`."""

    @property
    def loras(self) -> tuple[tuple[str, float], ...]: ...
    @property
    def controlnet(self) -> str | None: ...


def add_ons(loras: Iterable[str], controlnets: Iterable[str]) -> frozenset[str]:
    """Return the names as add-ons: that of a LoRA is its own, and nets are `controlnet=canny`."""
    return frozenset([*loras, *(_CONTROLNET + name for name in controlnets)])


def chosen_add_ons(request: ChosenNames) -> frozenset[str]:
    """Return the add-ons that a job chooses."""
    nets = () if request.controlnet is None else (request.controlnet,)
    return add_ons((name for name, _ in request.loras), nets)
