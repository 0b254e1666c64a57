"""Share what diffusers' sides of all flow models need: weights, LoRA, schedulers, noise.

This runs in the environment of `make parity`.
"""

import contextlib
import inspect
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest.mock import patch

import diffusers
import torch
import transformers
from diffusers import (
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchLCMScheduler,
)
from diffusers.models.autoencoders import vae
from diffusers.schedulers import (
    scheduling_dpmsolver_multistep,
    scheduling_flow_match_euler_discrete,
    scheduling_flow_match_heun_discrete,
    scheduling_flow_match_lcm,
)

from tools.parity.flow.checkpoint import write_weights
from tools.parity.flow.schedule_truth import CLASSES
from tools.parity.fuzz.draft import noise

_MODULES_WITH_NOISE: Final = (
    *(vae, scheduling_dpmsolver_multistep, scheduling_flow_match_euler_discrete),
    *(scheduling_flow_match_heun_discrete, scheduling_flow_match_lcm),
)
_SOLVERS: Final = ("dpmsolver++", "unipc")
_TOKEN_AXES: Final = 3
"""The pipelines of FLUX give schedulers latents as tokens, `[b, n, c]`."""
_BUFFERS: Final = ("running_mean", "running_var", "pos_embed.pos_embed")
"""They are the buffers that a checkpoint has: the statistics of a batch norm, and a table of
positions."""


def draw_weights(folder: Path) -> None:
    """Draw and write the weights of each network that diffusers would build."""
    index = json.loads((folder / "model_index.json").read_text())
    for name in ("text_encoder", "text_encoder_2", "text_encoder_3", "transformer", "vae"):
        library, class_name = index.get(name) or ("", "")
        if not library:
            continue
        kind = getattr(transformers if library == "transformers" else diffusers, class_name)
        if library == "transformers":
            network = kind(kind.config_class.from_pretrained(folder / name))
        else:
            network = kind.from_config(kind.load_config(folder / name))
        shapes = {
            key: tuple(each.shape)
            for key, each in (*network.named_parameters(), *network.named_buffers())
            if isinstance(each, torch.nn.Parameter) or key.endswith(_BUFFERS)
        }
        write_weights(folder, name, shapes)


def merge_loras(pipeline: Any, folder: Path, loras: Sequence[tuple[str, float]]) -> None:
    """Merge files of the folder, with their scales."""
    for number, (file, scale) in enumerate(loras):
        pipeline.load_lora_weights(folder, weight_name=file, adapter_name=str(number))
        pipeline.fuse_lora(adapter_names=[str(number)], lora_scale=scale)
        pipeline.unload_lora_weights()


def choose_scheduler(pipeline: DiffusionPipeline, name: str) -> None:
    """Replace the scheduler as a user of diffusers does."""
    own, fields = pipeline.scheduler, dict[str, Any]()
    config, is_solver = own.config, isinstance(own, tuple(CLASSES[each] for each in _SOLVERS))
    if name in _SOLVERS and not is_solver:
        fields = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
        fields["flow_shift"] = config.shift
    elif name not in _SOLVERS and is_solver:
        fields["shift"] = config.flow_shift
    pipeline.scheduler = CLASSES[name].from_config(config, **fields)


def _retrieve_timesteps(
    scheduler: Any,
    num_inference_steps: int,
    device: Any,
    *,
    sigmas: list[float] | None,
    mu: float | None = None,
) -> tuple[torch.Tensor, int]:
    """Set the timesteps of any scheduler of flow models. That of the pipelines raises an error with
    those that take no noise levels; docs/schedulers.md says that these have their own here."""
    options: dict[str, Any] = {}
    if isinstance(scheduler, FlowMatchEulerDiscreteScheduler | FlowMatchLCMScheduler):
        options = {"sigmas": sigmas, "mu": mu}
        if sigmas is None:
            options = {"num_inference_steps": num_inference_steps, "mu": mu}
    else:
        options = {"num_inference_steps": num_inference_steps}
        takes_mu = "mu" in inspect.signature(scheduler.set_timesteps).parameters
        if takes_mu and scheduler.config.get("use_dynamic_shifting"):
            options["mu"] = mu
    scheduler.set_timesteps(device=device, **options)
    return scheduler.timesteps, num_inference_steps


@contextlib.contextmanager
def ours_noise(pipelines: Sequence[ModuleType], *, patch_side: int = 1) -> Iterator[None]:
    """Replace all random noise by that of `noise`, and let the pipelines of these modules run all
    schedulers.

    A token has the latents of a square with the side `patch_side`.
    """

    def draw(shape: tuple[int, ...], *_: object, **__: object) -> torch.Tensor:
        if len(shape) == _TOKEN_AXES:
            batch, tokens, channels = shape
            side = math.isqrt(tokens)  # the images are square
            count, full = channels // patch_side**2, side * patch_side
            drawn = torch.from_numpy(noise((batch, count, full, full)))
            squares = drawn.reshape(batch, count, side, patch_side, side, patch_side)
            return squares.permute(0, 2, 4, 1, 3, 5).reshape(shape)
        return torch.from_numpy(noise(tuple(shape)))

    with contextlib.ExitStack() as patches:
        for module in (*_MODULES_WITH_NOISE, *pipelines):
            if hasattr(module, "randn_tensor"):
                patches.enter_context(patch.object(module, "randn_tensor", draw))
        for module in pipelines:
            replacement = patch.object(module, "retrieve_timesteps", _retrieve_timesteps)
            patches.enter_context(replacement)
        yield
