"""Ask diffusers for the images of a drawn checkpoint of Z-Image.

This runs in the environment of `make parity`. It draws the weights of the networks that diffusers
builds from the configs, so that both sides read the same files.
"""

import contextlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import diffusers
import numpy as np
import torch
import transformers
from diffusers import (
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchLCMScheduler,
    ZImageImg2ImgPipeline,
    ZImageInpaintPipeline,
    ZImagePipeline,
)
from diffusers.models.autoencoders import vae
from diffusers.pipelines.z_image import (
    pipeline_z_image,
    pipeline_z_image_img2img,
    pipeline_z_image_inpaint,
)
from diffusers.schedulers import (
    scheduling_dpmsolver_multistep,
    scheduling_flow_match_euler_discrete,
    scheduling_flow_match_heun_discrete,
    scheduling_flow_match_lcm,
)
from PIL import Image

from tools.parity.flow.checkpoint import write_weights
from tools.parity.flow.schedule_truth import CLASSES
from tools.parity.fuzz.draft import noise
from tools.parity.known.write import init_image, inpaint_mask

_PIPELINES = (pipeline_z_image, pipeline_z_image_img2img, pipeline_z_image_inpaint)
_MODULES_WITH_NOISE = (
    *(vae, *_PIPELINES),
    *(scheduling_dpmsolver_multistep, scheduling_flow_match_euler_discrete),
    *(scheduling_flow_match_heun_discrete, scheduling_flow_match_lcm),
)
_SOLVERS = ("dpmsolver++", "unipc")


@torch.no_grad()
def generate(description: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the images of the job, uint8 `[n, h, w, 3]`.

    Raises:
        Exception: diffusers refuses the checkpoint or the job.
    """
    folder, job = Path(description["folder"]), description["job"]
    _draw_weights(folder)
    pipeline = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    for number, (file, scale) in enumerate(description["loras"]):
        pipeline.load_lora_weights(folder, weight_name=file, adapter_name=str(number))
        pipeline.fuse_lora(adapter_names=[str(number)], lora_scale=scale)
        pipeline.unload_lora_weights()
    if job["scheduler"]:
        _choose_scheduler(pipeline, job["scheduler"])
    options = {}
    if job["strength"] is not None:
        kind: Any = ZImageInpaintPipeline if job["is_masked"] else ZImageImg2ImgPipeline
        pipeline = kind(**pipeline.components)
        options = {"strength": job["strength"], "image": Image.fromarray(init_image(job["side"]))}
        if job["is_masked"]:
            options["mask_image"] = Image.fromarray(inpaint_mask(job["side"]))
    elif not isinstance(pipeline, ZImagePipeline):
        raise TypeError(f"{type(pipeline).__name__} needs an image")
    pipeline.set_progress_bar_config(disable=True)
    with _ours_noise():
        images = pipeline(
            prompt=job["prompts"],
            negative_prompt=job["negative_prompts"],
            height=job["side"],
            width=job["side"],
            num_inference_steps=job["steps"],
            guidance_scale=job["guidance"],
            cfg_normalization=job["cfg_normalization"],
            cfg_truncation=job["cfg_truncation"],
            output_type="np",
            **options,
        ).images
    if not np.isfinite(images).all():
        raise ArithmeticError("the images are not finite")
    return (images * 255).round().astype(np.uint8)


def _draw_weights(folder: Path) -> None:
    """Draw and write the weights of each network that diffusers would build."""
    index = json.loads((folder / "model_index.json").read_text())
    for name in ("text_encoder", "transformer", "vae"):
        library, class_name = index.get(name) or ("", "")
        if not library:
            continue
        kind = getattr(transformers if library == "transformers" else diffusers, class_name)
        if library == "transformers":
            network = kind(kind.config_class.from_pretrained(folder / name))
        else:
            network = kind.from_config(kind.load_config(folder / name))
        shapes = {key: tuple(each.shape) for key, each in network.named_parameters()}
        write_weights(folder, name, shapes)


def _choose_scheduler(pipeline: DiffusionPipeline, name: str) -> None:
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
    sigmas: list[float],
    mu: float,
) -> tuple[torch.Tensor, int]:
    """Set the timesteps of any scheduler of flow models. That of the pipelines raises an error with
    those that take no noise levels; docs/schedulers.md says that these have their own here."""
    options: dict[str, Any] = {}
    if isinstance(scheduler, FlowMatchEulerDiscreteScheduler | FlowMatchLCMScheduler):
        options = {"sigmas": sigmas, "mu": mu}
    else:
        options = {"num_inference_steps": num_inference_steps}
        takes_mu = "mu" in inspect.signature(scheduler.set_timesteps).parameters
        if takes_mu and scheduler.config.get("use_dynamic_shifting"):
            options["mu"] = mu
    scheduler.set_timesteps(device=device, **options)
    return scheduler.timesteps, num_inference_steps


@contextlib.contextmanager
def _ours_noise() -> Iterator[None]:
    """Replace all random noise by that of `noise`, and let the pipelines run all schedulers."""

    def draw(shape: tuple[int, ...], *_: object, **__: object) -> torch.Tensor:
        return torch.from_numpy(noise(tuple(shape)))

    with contextlib.ExitStack() as patches:
        for module in _MODULES_WITH_NOISE:
            if hasattr(module, "randn_tensor"):
                patches.enter_context(patch.object(module, "randn_tensor", draw))
        for module in _PIPELINES:
            replacement = patch.object(module, "retrieve_timesteps", _retrieve_timesteps)
            patches.enter_context(replacement)
        yield
