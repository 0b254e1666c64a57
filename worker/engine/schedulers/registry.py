"""The samplers there are, by the names jobs use."""

from collections.abc import Callable, Mapping
from typing import Final

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.schedulers.coefficients import Table
from imagefleet.worker.engine.schedulers.ddim import ddim
from imagefleet.worker.engine.schedulers.dpmsolver import dpmsolver, dpmsolver_karras
from imagefleet.worker.engine.schedulers.euler import euler, euler_ancestral
from imagefleet.worker.engine.schedulers.lcm import lcm
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule
from imagefleet.worker.engine.schedulers.pndm import pndm

Scheduler = Callable[[NoiseSchedule, int, int], Table]
"""From a noise schedule, a step count and how many steps to skip at the start."""

SCHEDULERS: Final[Mapping[str, Scheduler]] = {
    "ddim": ddim,
    "euler": euler,
    "euler_ancestral": euler_ancestral,
    "dpmsolver++": dpmsolver,
    "dpmsolver++_karras": dpmsolver_karras,
    "pndm": pndm,
    "lcm": lcm,
}

_NAMES: Final = {
    "EulerAncestralDiscreteScheduler": "euler_ancestral",
    "EulerDiscreteScheduler": "euler",
    "LCMScheduler": "lcm",
    "DPMSolverMultistepScheduler": "dpmsolver++",
    "PNDMScheduler": "pndm",
}

EXTRA_CALLS: Final = 1
"""Calls of the model beyond the number of steps, at most (PNDM)."""


def available(noise: NoiseSchedule) -> tuple[str, ...]:
    """Samplers that can run this model."""
    unfit: set[str] = set()
    if noise.prediction_type == "sample":
        unfit |= {"pndm", "euler_ancestral"}  # not defined for it, in diffusers either
    if noise.rescale_betas_zero_snr:
        unfit.add("pndm")  # divides by the signal left, which is none
    return tuple(name for name in SCHEDULERS if name not in unfit)


def default(noise: NoiseSchedule) -> str:
    """The checkpoint's own sampler if it is one of ours, else DDIM.

    Raises:
        CheckpointError: what the checkpoint predicts forbids its own sampler.
    """
    name = _NAMES.get(noise.class_name, "ddim")
    if name not in available(noise):
        raise CheckpointError(
            f"scheduler: {noise.class_name} is not defined for "
            f"prediction_type={noise.prediction_type!r}, "
            f"rescale_betas_zero_snr={noise.rescale_betas_zero_snr}; DDIMScheduler is"
        )
    return name
