"""Run diffusers' schedulers for flow models, with a formula in place of the network.

There is no input. The output is, by case, the samples after every call of the model.
"""

import contextlib
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from diffusers import (
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    FlowMatchLCMScheduler,
    UniPCMultistepScheduler,
)
from diffusers.pipelines.z_image.pipeline_z_image import calculate_shift
from diffusers.schedulers import (
    scheduling_dpmsolver_multistep,
    scheduling_flow_match_euler_discrete,
    scheduling_flow_match_lcm,
)

from tools.parity.checkpoints import Tensors
from tools.parity.flow.schedule_cases import CONFIGS, cases
from tools.parity.samplers import model

CLASSES = {
    "euler": FlowMatchEulerDiscreteScheduler,
    "lcm": FlowMatchLCMScheduler,
    "heun": FlowMatchHeunDiscreteScheduler,
    "dpmsolver++": DPMSolverMultistepScheduler,
    "unipc": UniPCMultistepScheduler,
}
_WITH_NOISE = (
    scheduling_dpmsolver_multistep,
    scheduling_flow_match_euler_discrete,
    scheduling_flow_match_lcm,
)


def flow_runs() -> Tensors:
    """Return the samples by the case joined by `|`, and the inputs as in `samplers`."""
    generator = torch.Generator().manual_seed(5)
    start = torch.randn(1, 2, 4, 4, generator=generator)
    clean = torch.randn(1, 2, 4, 4, generator=generator)
    fresh = torch.randn(16, 1, 2, 4, 4, generator=generator)
    runs = {"|".join(map(str, case)): _run(*case, start, clean, fresh) for case in cases()}
    return runs | {"start": start, "clean": clean, "fresh": fresh}


def _run(
    name: str,
    config: str,
    steps: int,
    skipped: int,
    tokens: int,
    start: torch.Tensor,
    clean: torch.Tensor,
    fresh: torch.Tensor,
) -> torch.Tensor:
    fields: dict[str, Any] = dict(CONFIGS[config])
    ends = ("base_image_seq_len", 256), ("max_image_seq_len", 4096)
    shifts = ("base_shift", 0.5), ("max_shift", 1.15)
    mu = calculate_shift(tokens, *(fields.get(*each) for each in (*ends, *shifts)))
    options: dict[str, Any] = {"mu": mu} if fields.get("use_dynamic_shifting") else {}
    if name in ("dpmsolver++", "unipc"):
        flow_shift = fields.pop("shift", 1.0)
        fields |= {"use_flow_sigmas": True, "flow_shift": flow_shift}
        fields |= {"prediction_type": "flow_prediction"}
    elif name == "heun":
        options = {}
    else:
        options["sigmas"] = np.linspace(1.0, 1 / steps, steps)
    scheduler = CLASSES[name].from_config(fields)
    scheduler.set_timesteps(
        **({} if "sigmas" in options else {"num_inference_steps": steps}), **options
    )
    skipped *= scheduler.order
    scheduler.set_begin_index(skipped)
    x = start
    if skipped:
        sigma = scheduler.sigmas[skipped]
        x = (1 - sigma) * clean + sigma * start
    outputs, noises = [], iter(fresh)
    with contextlib.ExitStack() as patches:
        for module in _WITH_NOISE:
            patches.enter_context(
                patch.object(module, "randn_tensor", lambda *_, **__: next(noises))
            )
        for timestep in scheduler.timesteps[skipped:]:
            output = model(x, float(timestep))
            x = scheduler.step(output, timestep, x).prev_sample
            outputs.append(x)
    return torch.stack(outputs)
