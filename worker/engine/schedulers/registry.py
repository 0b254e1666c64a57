"""List the supported schedulers, by the names that jobs use."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

import numpy as np

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable
from imagefleet.worker.engine.schedulers.ddim import ddim
from imagefleet.worker.engine.schedulers.deis import deis
from imagefleet.worker.engine.schedulers.dpmsolver import dpmsolver, dpmsolver_karras
from imagefleet.worker.engine.schedulers.edm import edm_dpmsolver, edm_euler
from imagefleet.worker.engine.schedulers.euler import euler, euler_ancestral
from imagefleet.worker.engine.schedulers.flow import (
    flow_dpmsolver,
    flow_euler,
    flow_heun,
    flow_lcm,
    flow_unipc,
)
from imagefleet.worker.engine.schedulers.flow_schedule import FlowSchedule
from imagefleet.worker.engine.schedulers.lcm import lcm
from imagefleet.worker.engine.schedulers.lms import lms
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule, default_betas
from imagefleet.worker.engine.schedulers.pndm import pndm
from imagefleet.worker.engine.schedulers.prediction import Prediction
from imagefleet.worker.engine.schedulers.singlestep import singlestep
from imagefleet.worker.engine.schedulers.solver_options import UniPcOptions
from imagefleet.worker.engine.schedulers.tcd import tcd
from imagefleet.worker.engine.schedulers.two_evaluations import heun, kdpm2, kdpm2_ancestral
from imagefleet.worker.engine.schedulers.unipc import unipc

Schedule = NoiseSchedule | FlowSchedule
"""It is the noise schedule of a model."""
Scheduler = Callable[[NoiseSchedule, int, int], CoefficientTable]
"""Returns the table for a noise schedule, a step count and a number of first steps to skip."""
FlowScheduler = Callable[[FlowSchedule, int, int], CoefficientTable]
"""It is a `Scheduler` of flow models."""

SCHEDULERS: Final[Mapping[str, Scheduler]] = {
    "ddim": ddim,
    "euler": euler,
    "euler_ancestral": euler_ancestral,
    "dpmsolver++": dpmsolver,
    "dpmsolver++_karras": dpmsolver_karras,
    "pndm": pndm,
    "lcm": lcm,
    "deis": deis,
    "unipc": unipc,
    "lms": lms,
    "heun": heun,
    "kdpm2": kdpm2,
    "kdpm2_ancestral": kdpm2_ancestral,
    "tcd": tcd,
    "dpmsolver++_singlestep": singlestep,
    "edm_euler": edm_euler,
    "edm_dpmsolver++": edm_dpmsolver,
}

FLOW_SCHEDULERS: Final[Mapping[str, FlowScheduler]] = {
    "euler": flow_euler,
    "heun": flow_heun,
    "dpmsolver++": flow_dpmsolver,
    "unipc": flow_unipc,
    "lcm": flow_lcm,
}
"""Flow models have these schedulers, by the names of the same methods for other models."""

_NAME_BY_CLASS: Final = {
    "DDIMScheduler": "ddim",
    "EulerAncestralDiscreteScheduler": "euler_ancestral",
    "EulerDiscreteScheduler": "euler",
    "LCMScheduler": "lcm",
    "DPMSolverMultistepScheduler": "dpmsolver++",
    "DPMSolverSinglestepScheduler": "dpmsolver++_singlestep",
    "PNDMScheduler": "pndm",
    "DEISMultistepScheduler": "deis",
    "UniPCMultistepScheduler": "unipc",
    "LMSDiscreteScheduler": "lms",
    "HeunDiscreteScheduler": "heun",
    "KDPM2DiscreteScheduler": "kdpm2",
    "KDPM2AncestralDiscreteScheduler": "kdpm2_ancestral",
    "TCDScheduler": "tcd",
    "EDMEulerScheduler": "edm_euler",
    "EDMDPMSolverMultistepScheduler": "edm_dpmsolver++",
}
_FLOW_NAME_BY_CLASS: Final = {
    "FlowMatchEulerDiscreteScheduler": "euler",
    "FlowMatchHeunDiscreteScheduler": "heun",
    "FlowMatchLCMScheduler": "lcm",
    "DPMSolverMultistepScheduler": "dpmsolver++",
    "UniPCMultistepScheduler": "unipc",
}

_CLASS_BY_NAME: Final = {name: class_name for class_name, name in _NAME_BY_CLASS.items()} | {
    "dpmsolver++_karras": "DPMSolverMultistepScheduler"
}

_EDM: Final = ("edm_euler", "edm_dpmsolver++")


def max_calls(steps: int) -> int:
    """Return the most calls of the model that this many steps may need.

    PNDM needs one call more than steps. Schedulers with two calls in each step but the last need
    one call fewer than twice the steps.
    """
    return max(steps + 1, 2 * steps - 1)


def steps_after(calls_done: int, steps: int, calls: int) -> int:
    """Return the steps that have begun after some of the calls of an image."""
    return min(steps, -(-calls_done * steps // calls))


def step_table(name: str, schedule: Schedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table of a scheduler that is `available` for a noise schedule.

    Args:
        name: Of the scheduler.
        schedule: Of the model.
        steps: The number of steps.
        skipped: The number of first steps that do not run.
    """
    if isinstance(schedule, FlowSchedule):
        return FLOW_SCHEDULERS[name](schedule, steps, skipped)
    return SCHEDULERS[name](schedule, steps, skipped)


def available(schedule: Schedule) -> tuple[str, ...]:
    """Return the names of the schedulers that can run this model."""
    if isinstance(schedule, FlowSchedule):
        unsupported = {*schedule.unsupported}
        if not _ends_finite(schedule, schedule.unipc):
            unsupported.add("unipc")
        return tuple(name for name in FLOW_SCHEDULERS if name not in unsupported)
    if schedule.edm is not None:
        return tuple(name for name in _EDM if name not in schedule.unsupported)
    unsupported = {*_EDM, *schedule.unsupported, *_with_other_betas(schedule)}
    if schedule.prediction_type is Prediction.SAMPLE:
        # diffusers does not define them either.
        unsupported |= {"pndm", "euler_ancestral", "kdpm2", "kdpm2_ancestral"}
    if schedule.rescale_betas_zero_snr:
        # PNDM divides by alpha, which is 0 at the last timestep. The others below do not
        # have the field in diffusers.
        unsupported |= {"pndm", "deis", "lms", "heun", "kdpm2", "kdpm2_ancestral"}
        unsupported.add("dpmsolver++_singlestep")
    if not _ends_finite(schedule, schedule.unipc):
        unsupported.add("unipc")
    return tuple(name for name in SCHEDULERS if name not in unsupported)


def fault_of(name: str, schedule: Schedule, counts: Collection[int]) -> str | None:
    """Return why a scheduler cannot make its tables for a noise schedule. None: it can.

    Args:
        name: Of the scheduler, one of `available`.
        schedule: The checkpoint's.
        counts: The numbers of steps to try.
    """
    for steps in sorted(counts):
        try:
            table = step_table(name, schedule, steps)
        except (ArithmeticError, ValueError) as error:  # also numpy's errors of linear algebra
            return f"its table of {steps} steps cannot be made ({error})"
        if np.isnan(table.rows).any():
            return f"its table of {steps} steps has undefined numbers"
    return None


def _with_other_betas(schedule: NoiseSchedule) -> Iterator[str]:
    """Yield the schedulers that would have other betas, if the file leaves them to the class."""
    own = default_betas(schedule.class_name)
    for name, class_name in _CLASS_BY_NAME.items():
        if schedule.lacks_betas and default_betas(class_name) != own:
            yield name


def _ends_finite(schedule: Schedule, options: UniPcOptions) -> bool:
    """Return whether the last step of UniPC is finite in diffusers.

    At noise level zero the type bh1 is infinite, and so are all orders but the first. With another
    spacing of the noise levels, and in flow models, the last step to `sigma_min` has no width, at
    which the third order divides zero by zero.
    """
    last_order = 1 if options.lower_order_final else options.solver_order
    if schedule.final_sigmas_type == "zero":
        return last_order == 1 and options.solver_type != "bh1"
    has_no_width = isinstance(schedule, FlowSchedule) or schedule.sigma_spacing is not None
    return last_order < 3 or not has_no_width


def _rescales(schedule: Schedule) -> bool:
    return isinstance(schedule, NoiseSchedule) and schedule.rescale_betas_zero_snr


def default(schedule: Schedule, chosen: str | None = None) -> str:
    """Return the name of the scheduler of jobs that name none.

    Args:
        schedule: The checkpoint's.
        chosen: The host's choice. None: the scheduler of the checkpoint.

    Raises:
        ConfigurationError: The chosen scheduler does not exist, or cannot run this model.
        CheckpointError: None is chosen, and the checkpoint's own scheduler is not supported, or is
            not defined for its prediction type or its betas.
    """
    offered = available(schedule)
    if chosen is not None:
        if chosen not in offered:
            raise ConfigurationError(
                f"IMAGEFLEET_SCHEDULER={chosen!r} cannot run this model; "
                f"choose {' or '.join(offered) or 'another model, as none can'}"
            )
        return chosen
    others = ", ".join(offered) or "but none runs this model"
    choice = f"set IMAGEFLEET_SCHEDULER to choose another on purpose: {others}"
    names = _FLOW_NAME_BY_CLASS if isinstance(schedule, FlowSchedule) else _NAME_BY_CLASS
    if (name := names.get(schedule.class_name)) is None:
        raise CheckpointError(
            f"model_index.json: scheduler is {schedule.class_name!r}, which this engine does not "
            f"have; {choice}"
        )
    if (reason := schedule.unsupported.get(name)) is not None:
        raise CheckpointError(
            f"scheduler/scheduler_config.json: {schedule.class_name} does not run here with "
            f"{reason}; {choice}"
        )
    if name not in offered:
        raise CheckpointError(
            f"scheduler/scheduler_config.json: {schedule.class_name} is not defined for "
            f"prediction_type={schedule.prediction_type.value!r}, "
            f"rescale_betas_zero_snr={_rescales(schedule)}, "
            f"final_sigmas_type={schedule.final_sigmas_type!r} and its other fields; {choice}"
        )
    return name
