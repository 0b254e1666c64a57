"""Ask PyTorch diffusers for the images of a drawn checkpoint.

This runs in the environment of `make parity`. Input: descriptions of checkpoints, one JSON object a
line. Output: a line for each, with the error or the file of the images.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import diffusers
import numpy as np
import torch
import transformers
from diffusers import DDIMScheduler, DDPMScheduler, DiffusionPipeline, UNet2DConditionModel
from diffusers.models.autoencoders import vae
from diffusers.utils import torch_utils

from tools.parity.checkpoints import randomise, scale_down_output
from tools.parity.fuzz import (
    flux1_truth,
    flux2_klein_truth,
    stable_diffusion_3_truth,
    z_image_truth,
)
from tools.parity.fuzz.draft import noise
from tools.parity.fuzz.draw_flux1 import BASE as FLUX1
from tools.parity.fuzz.draw_flux2_klein import BASE as FLUX2_KLEIN
from tools.parity.fuzz.draw_stable_diffusion_3 import BASE as STABLE_DIFFUSION_3
from tools.parity.fuzz.draw_z_image import BASE as Z_IMAGE
from tools.parity.levels import to_levels
from tools.parity.samplers import ALL_SAMPLERS, MODULES_WITH_NOISE
from tools.parity.serve_truth import first_line, serve

MODULES_OF_PIPELINES = (
    "diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion",
    "diffusers.pipelines.stable_diffusion_xl.pipeline_stable_diffusion_xl",
    "diffusers.pipelines.latent_consistency_models.pipeline_latent_consistency_text2img",
    "diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion_inpaint",
    "diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion_instruct_pix2pix",
    "diffusers.pipelines.stable_diffusion_xl.pipeline_stable_diffusion_xl_img2img",
    "diffusers.pipelines.stable_diffusion_xl.pipeline_stable_diffusion_xl_inpaint",
    "diffusers.pipelines.stable_diffusion_xl.pipeline_stable_diffusion_xl_instruct_pix2pix",
)


@torch.no_grad()
def generate(description: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the images of the job, uint8 `[2, h, w, 3]`.

    Raises:
        Exception: diffusers refuses the checkpoint or the job.
    """
    folder, job = Path(description["folder"]), description["job"]
    if description["network"]:
        draw_weights(folder, len(description["changes"]))
    pipeline = load(folder, description["single_file"])
    pipeline.set_progress_bar_config(disable=True)
    merge_loras(pipeline, folder, dict(description["loras"]))
    if job["scheduler"]:
        choose_scheduler(pipeline, job["scheduler"])
    options = {"height": job["side"], "width": job["side"]} if job["side"] else {}
    # Not every pipeline has these two.
    options |= {name: job[name] for name in ("clip_skip", "guidance_rescale") if job[name]}
    with ours_noise():
        images = pipeline(
            job["prompts"],
            negative_prompt=job["negative_prompts"],
            num_inference_steps=job["steps"],
            guidance_scale=job["guidance"],
            output_type="np",
            **options,
        ).images
    return to_levels(images)


def load(folder: Path, single_file: str | None) -> DiffusionPipeline:
    """Load a pipeline in float32; in half precision if it has no other weights.

    Args:
        folder: The checkpoint, or the configs of the single file.
        single_file: A file of all weights.
    """
    if single_file:
        return load_single_file(folder, single_file)
    try:
        return DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    except OSError:
        if not any(folder.glob("*/*.fp16*")):
            raise
        return DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32, variant="fp16")


def load_single_file(folder: Path, file: str) -> Any:
    """Load a file with the configs and the text encoders in the folder."""
    index = json.loads((folder / "model_index.json").read_text())
    text_encoders = {
        name: getattr(transformers, index[name][1]).from_pretrained(folder / name)
        for name in ("text_encoder", "text_encoder_2")
        if name in index
    }
    kind = getattr(diffusers, index["_class_name"])
    return kind.from_single_file(file, config=str(folder), **text_encoders).to(torch.float32)


def merge_loras(pipeline: Any, folder: Path, scales: dict[str, float]) -> None:
    """Merge files with these scales, by their names in the folder."""
    for file, scale in scales.items():
        pipeline.load_lora_weights(folder, weight_name=file)
        # `set_adapters` does not know UNets whose levels have different numbers of layers.
        pipeline.fuse_lora(lora_scale=scale)
        pipeline.unload_lora_weights()


def draw_weights(folder: Path, seed: int) -> None:
    """Write random weights for the config of the UNet."""
    config = json.loads((folder / "unet" / "config.json").read_text())
    unet = UNet2DConditionModel.from_config(config).eval()
    randomise(unet, torch.Generator().manual_seed(seed), torch.float16)
    scale_down_output(unet, torch.float16)
    for file in (folder / "unet").glob("*.safetensors*"):
        file.unlink()
    unet.save_pretrained(folder / "unet")
    (folder / "unet" / "config.json").write_text(json.dumps(config))


def choose_scheduler(pipeline: DiffusionPipeline, name: str) -> None:
    """Replace the scheduler as a user of diffusers does, but for `_kept_fields`."""
    own = pipeline.scheduler
    fields = _kept_fields(own, name)
    if name.endswith("karras"):
        fields["use_karras_sigmas"] = True
    pipeline.scheduler = ALL_SAMPLERS[name].from_config(own.config, **fields)


def _kept_fields(own: Any, name: str) -> dict[str, Any]:
    """Return fields that ours keeps where `from_config` takes the default of the new class.

    docs/schedulers.md names both cases. They are fields that the file does not have: the pipelines
    of Stable Diffusion 1 and 2 have set `steps_offset`, and `ddim` clips samples only if the
    scheduler of the file does.
    """
    fields = {}
    missing = own.config.get("_use_default_values", [])
    if "steps_offset" in missing and name != "dpmsolver++_singlestep":
        fields["steps_offset"] = own.config.steps_offset
    if name == "ddim" and ("clip_sample" in missing or "clip_sample" not in own.config):
        is_like_ddim = isinstance(own, DDIMScheduler | DDPMScheduler)
        fields["clip_sample"] = is_like_ddim and own.config.clip_sample
    return fields


Draw = Callable[..., torch.Tensor]
"""It takes the arguments of `randn_tensor`."""


@contextlib.contextmanager
def ours_noise() -> Iterator[None]:
    """Replace all random noise by that of `noise`."""

    def draw(shape: tuple[int, ...], *_: object, **__: object) -> torch.Tensor:
        return torch.from_numpy(noise(tuple(shape)))

    with replaced_noise(start=draw, steps=draw, encoding=draw):
        yield


@contextlib.contextmanager
def replaced_noise(*, start: Draw, steps: Draw, encoding: Draw) -> Iterator[None]:
    """Replace the random noise of pipelines, that of schedulers, and that of autoencoders."""
    names = (name for name in MODULES_OF_PIPELINES if name in sys.modules)
    replaced = [
        *((module, steps) for module in MODULES_WITH_NOISE),
        (vae, encoding),
        (torch_utils, start),
        *((sys.modules[name], start) for name in names),
    ]
    with contextlib.ExitStack() as patches:
        for module, draw in replaced:
            patches.enter_context(patch.object(module, "randn_tensor", draw))
        yield


FLOW_MODELS = {
    Z_IMAGE: z_image_truth.generate,
    FLUX2_KLEIN: flux2_klein_truth.generate,
    FLUX1: flux1_truth.generate,
    STABLE_DIFFUSION_3: stable_diffusion_3_truth.generate,
}
"""By the checkpoint that was changed. Others are asked by `generate`."""


def answer(description: dict[str, Any]) -> dict[str, Any]:
    """Return the file of the images, or the error in one line."""
    try:
        images = FLOW_MODELS.get(description["base"], generate)(description)
    except Exception as error:  # whatever diffusers and transformers raise
        return {"error": first_line(error, description["folder"])}
    file = f"{description['folder']}.npy"
    np.save(file, images)
    return {"images": file}


if __name__ == "__main__":
    serve(answer)
