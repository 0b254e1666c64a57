"""Runs of diffusers' schedulers with a formula in place of the network.

There is no input. The output is, by case, the samples after every call of the model.
"""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from diffusers import (
    DDIMScheduler,
    DEISMultistepScheduler,
    DPMSolverMultistepScheduler,
    DPMSolverSinglestepScheduler,
    EDMDPMSolverMultistepScheduler,
    EDMEulerScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    KDPM2AncestralDiscreteScheduler,
    KDPM2DiscreteScheduler,
    LCMScheduler,
    LMSDiscreteScheduler,
    PNDMScheduler,
    TCDScheduler,
    UniPCMultistepScheduler,
)
from diffusers.schedulers import (
    scheduling_dpmsolver_multistep,
    scheduling_edm_dpmsolver_multistep,
    scheduling_euler_ancestral_discrete,
    scheduling_k_dpm_2_ancestral_discrete,
    scheduling_lcm,
)

from tools.parity.checkpoints import Tensors
from tools.parity.scheduler_configs import BETA_SCHEDULES, CONFIGS

SAMPLERS = {
    "ddim": DDIMScheduler,
    "pndm": PNDMScheduler,
    "euler": EulerDiscreteScheduler,
    "dpmsolver++": DPMSolverMultistepScheduler,
}
"""Schedulers that add no noise at their steps. Whole images are compared with these."""
ALL_SAMPLERS = SAMPLERS | {
    "euler_ancestral": EulerAncestralDiscreteScheduler,
    "dpmsolver++_karras": DPMSolverMultistepScheduler,
    "lcm": LCMScheduler,
    "deis": DEISMultistepScheduler,
    "unipc": UniPCMultistepScheduler,
    "lms": LMSDiscreteScheduler,
    "heun": HeunDiscreteScheduler,
    "kdpm2": KDPM2DiscreteScheduler,
    "kdpm2_ancestral": KDPM2AncestralDiscreteScheduler,
    "tcd": TCDScheduler,
    "dpmsolver++_singlestep": DPMSolverSinglestepScheduler,
}
EDM_SAMPLERS = {
    "edm_euler": EDMEulerScheduler,
    "edm_dpmsolver++": EDMDPMSolverMultistepScheduler,
}
"""Schedulers of models without betas."""
MODULES_WITH_NOISE = (
    scheduling_dpmsolver_multistep,
    scheduling_edm_dpmsolver_multistep,
    scheduling_euler_ancestral_discrete,
    scheduling_k_dpm_2_ancestral_discrete,
    scheduling_lcm,
)
"""Modules whose random noise is replaced by ours."""


def model(x: torch.Tensor, timestep: float) -> torch.Tensor:
    """Compute the formula that replaces the network. The test has the same in numpy."""
    return torch.tanh(0.7 * x + 0.3 * torch.roll(x, 1, -1)) * (0.5 + timestep / 1000)


def cases() -> Iterator[tuple[str, str, str, int, int, str]]:
    """Yield scheduler, prediction type, spacing, steps, steps skipped by an init image, config."""
    spacings, predictions = ("leading", "trailing", "linspace"), ("epsilon", "v_prediction")
    yield from itertools.product(ALL_SAMPLERS, predictions, spacings, (1, 2, 3, 8), (0,), ("sd",))
    yield from itertools.product(ALL_SAMPLERS, ("epsilon",), spacings, (8,), (1, 3, 7), ("sd",))
    no_samples = ("pndm", "euler_ancestral", "kdpm2", "kdpm2_ancestral")
    predicting_samples = [name for name in ALL_SAMPLERS if name not in no_samples]
    yield from itertools.product(predicting_samples, ("sample",), spacings, (5,), (0,), ("sd",))
    for prediction, steps in itertools.product(("sample", "v_prediction"), (5, 50)):
        yield "ddim", prediction, "trailing", steps, 0, "linear"
    no_rescaling: tuple[str, ...] = ("pndm", "deis", "lms", "heun", "kdpm2", "kdpm2_ancestral")
    no_rescaling = (*no_rescaling, "dpmsolver++_singlestep")
    for name in [name for name in ALL_SAMPLERS if name not in no_rescaling]:
        yield name, "v_prediction", "trailing", 7, 0, "zero"
    for name in ALL_SAMPLERS:
        yield name, "v_prediction", "leading", 10, 0, "cosine"
    for name in ("ddim", "lcm"):
        yield from itertools.product((name,), predictions, ("leading",), (6,), (0,), ("clip",))
    dpm: tuple[str, ...] = ("clipped_cosine", "not_lower_at_last", "euler_at_last", "first_order")
    dpm = (*dpm, "heun", "sde", "sde_heun")
    yield from itertools.product(("dpmsolver++",), ("epsilon",), spacings, (6, 16), (0,), dpm)
    # With epsilon, the first predicted x0 and its float32 error are 20,000 times enlarged noise.
    yield "dpmsolver++", "v_prediction", "leading", 6, 0, "karras_cosine"
    both = ("karras", "sigma_min")
    yield from itertools.product(
        ("euler", "dpmsolver++"), predictions, spacings, (6,), (0, 2), both
    )
    yield "lcm", "epsilon", "leading", 4, 0, "linear"
    for skipped, config in itertools.product((0, 9), ("distilled_100", "distilled_100_cosine")):
        yield "lcm", "v_prediction", "leading", 30, skipped, config
    yield from cases_of_solvers()


def cases_of_solvers() -> Iterator[tuple[str, str, str, int, int, str]]:
    """Yield the cases of the solvers with options, and of models without betas."""
    linear: tuple[str, ...] = ("euler", "dpmsolver++", "deis", "unipc", "lms", "heun", "kdpm2")
    linear = (*linear, "kdpm2_ancestral", "dpmsolver++_singlestep")
    spaced: tuple[str, ...] = ("exponential", "beta")
    yield from itertools.product(linear, ("epsilon",), ("leading",), (6,), (0, 2), spaced)
    others, karras = linear[2:], ("karras",)
    yield from itertools.product(others, ("v_prediction",), ("trailing",), (6,), (0, 2), karras)
    multistep = ("dpmsolver++", "deis", "unipc")
    third = ("third_order", "third_order_to_the_end")
    yield from itertools.product(multistep, ("epsilon",), ("leading",), (3, 7, 20), (0, 2), third)
    configs: tuple[str, ...] = ("heun", "third_order", "third_order_heun", "third_order_to_the_end")
    configs = (*configs, "not_lower_at_last", "sigma_min", "first_order", "clipped_cosine")
    single = ("dpmsolver++_singlestep",)
    yield from itertools.product(single, ("epsilon",), ("linspace",), (6, 7, 20), (0, 2), configs)
    for steps in (5, 20):
        yield "dpmsolver++", "epsilon", "leading", steps, 0, "third_order_sde"
        for config in ("bh1", "bh1_third_order", "corrected_later", "first_order", "sigma_min"):
            yield "unipc", "v_prediction", "trailing", steps, 0, config
        yield "deis", "epsilon", "linspace", steps, 0, "first_order"
    to_lowest = ("karras_sigma_min",)
    yield from itertools.product(
        ("deis", "unipc"), ("epsilon",), ("leading",), (1, 6), (0,), to_lowest
    )
    ends = ("karras_to_the_end", "exponential_to_the_end", "beta_to_the_end")
    for steps, skipped in ((1, 0), (2, 0), (2, 1), (6, 0), (6, 1)):
        for config in ends:
            yield "unipc", "epsilon", "leading", steps, skipped, config
    predictions = ("epsilon", "v_prediction")
    configs = ("edm", "edm_sigma_min", "edm_exponential")
    yield from itertools.product(
        EDM_SAMPLERS, predictions, ("leading",), (4, 8, 20), (0, 1), configs
    )
    for config in ("edm_third_order", "edm_sde"):
        yield "edm_dpmsolver++", "epsilon", "leading", 17, 0, config


def sampler_runs() -> Tensors:
    """Return the samples after every call of the model, by the case joined by `|`; and the inputs.

    The inputs are the noise at the start, the noise of every step, and the clean sample from which
    the cases with skipped steps start. `alphas_cumprod` has a row for each of `BETA_SCHEDULES`.
    """
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(1, 4, 4, 4, generator=generator)
    clean = torch.randn(1, 4, 4, 4, generator=generator)
    fresh = torch.randn(51, 1, 4, 4, 4, generator=generator)
    runs = {"|".join(map(str, case)): run(*case, start, clean, fresh) for case in cases()}
    schedules = [
        LCMScheduler(beta_schedule=name, beta_start=first, beta_end=last).alphas_cumprod
        for name, first, last in BETA_SCHEDULES
    ]
    inputs = {"start": start, "clean": clean, "fresh": fresh}
    return runs | inputs | {"alphas_cumprod": torch.stack(schedules)}


def run(
    name: str,
    prediction: str,
    spacing: str,
    steps: int,
    skipped: int,
    config: str,
    start: torch.Tensor,
    clean: torch.Tensor,
    fresh: torch.Tensor,
) -> torch.Tensor:
    """Return the sample after every call, scaled as the model gets it: `[calls, 1, 4, 4, 4]`."""
    settings: dict[str, Any] = {
        "prediction_type": prediction,
        "timestep_spacing": spacing,
        "clip_sample": False,
    }
    settings |= {"skip_prk_steps": True, **CONFIGS[config]}
    settings |= {"use_karras_sigmas": True} if name.endswith("karras") else {}
    scheduler = (ALL_SAMPLERS | EDM_SAMPLERS)[name].from_config(settings)
    scheduler.set_timesteps(steps)
    skipped *= scheduler.order
    timesteps, x = scheduler.timesteps[skipped:], start * scheduler.init_noise_sigma
    if hasattr(scheduler, "set_begin_index"):  # it cannot find the index of repeated timesteps
        scheduler.set_begin_index(skipped)
    # Pipelines pass this eta to each scheduler that takes one.
    eta = {"eta": 0.0} if name == "tcd" else {}
    if skipped:
        x = scheduler.add_noise(clean, start, timesteps[:1])
    inputs, noises = [], iter(fresh)
    with contextlib.ExitStack() as patches:
        for module in MODULES_WITH_NOISE:
            patches.enter_context(
                patch.object(module, "randn_tensor", lambda *_, **__: next(noises))
            )
        for timestep in timesteps:
            scaled = scheduler.scale_model_input(x, timestep)
            inputs.append(scaled)
            x = scheduler.step(model(scaled, float(timestep)), timestep, x, **eta).prev_sample
    return torch.stack([*inputs[1:], x])
