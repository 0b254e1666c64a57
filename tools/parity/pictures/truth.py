"""Ask PyTorch diffusers for the images of drawn jobs.

This runs in the environment of `make parity`. Input: one JSON object a line. With `write` it writes
a checkpoint and answers the shapes of the UNet's weights; with `jobs` it answers the file of their
images, which has the error of a job in place of its image if diffusers refuses it.
"""

import contextlib
import copy
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch
from diffusers import DiffusionPipeline
from PIL import Image
from safetensors.torch import load_file

from tools.parity.fuzz.truth import choose_scheduler, replaced_noise
from tools.parity.known.checkpoints import KNOWN
from tools.parity.known.truth import weight_shapes
from tools.parity.known.write import write_configs, write_weights
from tools.parity.levels import to_levels
from tools.parity.pictures.draw import TOKEN, draw_image, draw_mask, takes_image
from tools.parity.serve_truth import first_line, serve

Noise = Mapping[str, np.ndarray[Any, Any]]


def write(name: str, folder: Path) -> dict[str, tuple[int, ...]]:
    """Write the checkpoint, and return the shapes of the UNet's weights."""
    write_configs(folder, KNOWN[name])
    shapes = weight_shapes(KNOWN[name])
    for network, of_network in shapes.items():
        write_weights(folder, KNOWN[name], network, of_network)
    return dict(shapes["unet"])


class Painter:
    """It paints the jobs of one checkpoint, each from the weights and the scheduler as loaded."""

    def __init__(self, name: str, folder: Path, files: Path, side: tuple[int, int]) -> None:
        variant = "fp16" if KNOWN[name].half_only else None
        self._pipeline: Any = DiffusionPipeline.from_pretrained(
            folder, torch_dtype=torch.float32, variant=variant
        )
        self._pipeline.set_progress_bar_config(disable=True)
        self._takes_image = takes_image(KNOWN[name])
        self._files, self._side = files, side
        self._load_token()
        self._own_scheduler = copy.deepcopy(self._pipeline.scheduler)
        self._weights = copy.deepcopy(self._pipeline.unet.state_dict())

    @torch.no_grad()
    def paint(self, job: dict[str, Any], noise: Noise) -> np.ndarray[Any, Any]:
        """Return the image, uint8 `[height, width, 3]`."""
        pipeline = self._pipeline
        pipeline.scheduler = copy.deepcopy(self._own_scheduler)
        if job["scheduler"]:
            choose_scheduler(pipeline, job["scheduler"])
        pipeline.unet.load_state_dict(self._weights)
        for name, scale in job["loras"].items():
            pipeline.load_lora_weights(self._files, weight_name=f"{name}.safetensors")
            pipeline.fuse_lora(lora_scale=scale)
            pipeline.unload_lora_weights()
        with given_noise(pipeline, noise):
            images = pipeline(**self._arguments(job), output_type="np").images
        return to_levels(images)[0]

    def _arguments(self, job: dict[str, Any]) -> dict[str, Any]:
        names = ("negative_prompt", "num_inference_steps", "guidance_scale")
        arguments = {name: job[name] for name in names}
        # Multi-vector tokens are spread by diffusers itself, in SDXL too.
        arguments["prompt"] = job["prompt"]
        optional = ("clip_skip", "guidance_rescale", "strength", "image_guidance_scale")
        arguments |= {name: job[name] for name in optional if job[name]}
        has_sides = type(self._pipeline).__name__ != "StableDiffusionInstructPix2PixPipeline"
        if has_sides:
            arguments |= {"height": self._side[0], "width": self._side[1]}
        if self._takes_image:
            arguments["image"] = Image.fromarray(draw_image(self._side, job["seed"]))
        if "Inpaint" in type(self._pipeline).__name__:
            arguments["mask_image"] = Image.fromarray(draw_mask(self._side, job["seed"]))
        return arguments

    def _load_token(self) -> None:
        vectors = load_file(self._files / "drawn.safetensors")
        if len(vectors) == 1:
            self._pipeline.load_textual_inversion(vectors["emb_params"], token=TOKEN)
            return
        for key, ending in (("clip_l", ""), ("clip_g", "_2")):
            self._pipeline.load_textual_inversion(
                vectors[key],
                token=TOKEN,
                text_encoder=getattr(self._pipeline, f"text_encoder{ending}"),
                tokenizer=getattr(self._pipeline, f"tokenizer{ending}"),
            )


_MASKED: Final = "prepare_mask_latents"


@contextlib.contextmanager
def given_noise(pipeline: Any, noise: Noise) -> Iterator[None]:
    """Replace each draw of random noise by that of its use."""
    state: dict[str, Any] = {"encoding": "encoding", "calls": 0}

    def tensor(use: str) -> torch.Tensor:
        array = noise["steps"][state["calls"]] if use == "steps" else noise[use]
        return torch.from_numpy(array.copy())

    def drawing(use: str) -> Any:
        return lambda *_, **__: tensor(state["encoding"] if use == "encoding" else use)

    own_step, own_masked = pipeline.scheduler.step, getattr(pipeline, _MASKED, None)

    @functools.wraps(own_step)  # pipelines read its signature: whether it takes `eta`
    def step(*args: Any, **kwargs: Any) -> Any:
        result = own_step(*args, **kwargs)
        state["calls"] += 1
        return result

    def masked(*args: Any, **kwargs: Any) -> Any:
        state["encoding"] = "masked"
        return own_masked(*args, **kwargs) if own_masked else None

    with contextlib.ExitStack() as patches:
        patches.enter_context(
            replaced_noise(
                start=drawing("start"), steps=drawing("steps"), encoding=drawing("encoding")
            )
        )
        patches.enter_context(patch.object(pipeline.scheduler, "step", step))
        if own_masked:
            patches.enter_context(patch.object(pipeline, _MASKED, masked))
        yield


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Answer one question."""
    folder, files = Path(question["folder"]), Path(question["files"])
    if question.get("write"):
        return {"shapes": write(question["name"], folder)}
    painter = Painter(question["name"], folder, files, tuple(question["side"]))
    images, errors = {}, {}
    for number, job in enumerate(question["jobs"]):
        try:
            images[str(number)] = painter.paint(job, np.load(files / f"noise-{number}.npz"))
        except Exception as error:  # whatever diffusers and transformers raise
            errors[str(number)] = first_line(error)
    np.savez(files / "truth.npz", **images)
    return {"images": str(files / "truth.npz"), "errors": errors}


if __name__ == "__main__":
    serve(answer)
