"""Runs of diffusers' schedulers around a formula instead of a network.

Goes in: nothing. Comes out: the samples after every call of the model, by case.
"""

import itertools

import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    PNDMScheduler,
)

from tools.parity.checkpoints import Tensors

SAMPLERS = {
    "ddim": DDIMScheduler,
    "pndm": PNDMScheduler,
    "euler": EulerDiscreteScheduler,
    "dpmsolver++": DPMSolverMultistepScheduler,
}


def model(x: torch.Tensor, timestep: float) -> torch.Tensor:
    """Stands for a network in the samplers' runs; the tests have the same in numpy."""
    return torch.tanh(0.7 * x + 0.3 * torch.roll(x, 1, -1)) * (0.5 + timestep / 1000)


def sampler_runs() -> Tensors:
    """`sampler|prediction|spacing|steps|betas` to the samples after every call of the model."""
    start = torch.randn(1, 4, 4, 4, generator=torch.Generator().manual_seed(3))
    runs = {"start": start}
    spacings, predictions = ("leading", "trailing", "linspace"), ("epsilon", "v_prediction")
    for case in itertools.product(SAMPLERS, predictions, spacings, (1, 2, 3, 8), ("sd",)):
        runs["|".join(map(str, case))] = run(*case, start)
    for prediction, steps in itertools.product(("sample", "v_prediction"), (5, 50)):
        case = ("ddim", prediction, "trailing", steps, "linear")
        runs["|".join(map(str, case))] = run(*case, start)
    for name in ("ddim", "euler", "dpmsolver++"):
        case = (name, "v_prediction", "trailing", 7, "zero")
        runs["|".join(map(str, case))] = run(*case, start)
    case = ("ddim", "epsilon", "leading", 10, "cosine")
    runs["|".join(map(str, case))] = run(*case, start)
    return runs


BETAS = {
    "sd": {
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "steps_offset": 1,
        "set_alpha_to_one": False,
    },
    "linear": {},
    "zero": {"rescale_betas_zero_snr": True},
    "cosine": {"beta_schedule": "squaredcos_cap_v2"},
}


def run(
    name: str, prediction: str, spacing: str, steps: int, betas: str, start: torch.Tensor
) -> torch.Tensor:
    """Samples as the model sees them, `[calls, 1, 4, 4, 4]`; the last as the decoder does."""
    config = {"prediction_type": prediction, "timestep_spacing": spacing, "clip_sample": False}
    config |= {"skip_prk_steps": True, **BETAS[betas]}
    scheduler = SAMPLERS[name].from_config(config)
    scheduler.set_timesteps(steps)
    x, seen = start * scheduler.init_noise_sigma, []
    for timestep in scheduler.timesteps:
        scaled = scheduler.scale_model_input(x, timestep)
        seen.append(scaled)
        x = scheduler.step(model(scaled, float(timestep)), timestep, x).prev_sample
    return torch.stack([*seen[1:], x])
