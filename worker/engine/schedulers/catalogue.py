"""The samplers there are, by the names jobs use."""

from collections.abc import Callable, Mapping
from typing import Final

from worker.engine.schedulers.ddim import ddim
from worker.engine.schedulers.dpmsolver import dpmsolver
from worker.engine.schedulers.euler import euler
from worker.engine.schedulers.noise import NoiseSchedule
from worker.engine.schedulers.pndm import pndm
from worker.engine.schedulers.table import Table

SCHEDULERS: Final[Mapping[str, Callable[[NoiseSchedule, int], Table]]] = {
    "ddim": ddim,
    "euler": euler,
    "dpmsolver++": dpmsolver,
    "pndm": pndm,
}

_NAMES: Final = {
    "EulerDiscreteScheduler": "euler",
    "DPMSolverMultistepScheduler": "dpmsolver++",
    "PNDMScheduler": "pndm",
}

EXTRA_CALLS: Final = 1
"""Calls of the model beyond the number of steps, at most (PNDM)."""


def available(noise: NoiseSchedule) -> tuple[str, ...]:
    """Samplers that can run this model."""
    unfit = {"pndm"} if noise.prediction_type == "sample" else set()
    if noise.rescale_betas_zero_snr:
        unfit.add("pndm")  # divides by the signal left, which is none
    return tuple(name for name in SCHEDULERS if name not in unfit)


def default(noise: NoiseSchedule) -> str:
    """The checkpoint's own sampler if it is one of ours, else DDIM."""
    name = _NAMES.get(noise.class_name, "ddim")
    return name if name in available(noise) else "ddim"
