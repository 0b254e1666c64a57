"""Draw jobs for the structures of well-known checkpoints, and what jobs may name: LoRA and tokens.

Input: a name of `CHECKPOINTS` and a seed. Output: jobs as JSON, and files that both sides read.
This module needs neither torch nor JAX.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tools.parity.known.checkpoints import KNOWN, KnownCheckpoint
from tools.parity.known.structures import SECOND_TEXT_WIDTH, TEXT_WIDTH
from tools.parity.known.write import Shapes

CHECKPOINTS: Final = (
    "CompVis/stable-diffusion-v1-4",
    "nota-ai/bk-sdm-small",
    "nota-ai/bk-sdm-tiny",
    "nota-ai/bk-sdm-v2-base",
    "runwayml/stable-diffusion-inpainting",
    "timbrooks/instruct-pix2pix",
    "stabilityai/stable-diffusion-xl-base-1.0",
    "segmind/SSD-1B",
    "segmind/Segmind-Vega",
    "ByteDance/SDXL-Lightning (its UNet in SDXL)",
    "Lykon/dreamshaper-xl-lightning",
    "playgroundai/playground-v2-1024px-aesthetic",
    "playgroundai/playground-v2.5-1024px-aesthetic",
    "diffusers/stable-diffusion-xl-1.0-inpainting-0.1",
    "diffusers/sdxl-instructpix2pix-768",
)
TOKEN: Final = "<drawn>"
"""Prompts may have this token, which has two vectors."""
LORAS: Final = ("near", "far")
MAX_STEPS: Final = 7
SIDES: Final = ((64, 64), (64, 128), (128, 64))
"""Height and width of the images of a checkpoint."""
_SCHEDULERS: Final = (
    *("ddim", "pndm", "euler", "euler_ancestral", "dpmsolver++", "dpmsolver++_karras", "lcm"),
    *("deis", "unipc", "lms", "heun", "kdpm2", "kdpm2_ancestral", "tcd", "dpmsolver++_singlestep"),
)
_PROMPTS: Final = (
    "a red circle on blue",
    f"a {TOKEN} in the style of {TOKEN}, 4k",
    "Zwölf  Bücher, 3 for €5!",
    "a photo of a cat (very old) -- by night",
    "",
    "the quick brown fox " * 30,
)
_NEGATIVES: Final = (None, None, "", "blue", f"{TOKEN}, ugly")


@dataclass(frozen=True, kw_only=True)
class PictureJob:
    """One image. Fields that are None are not given."""

    prompt: str
    negative_prompt: str | None
    seed: int
    image_index: int
    num_inference_steps: int
    guidance_scale: float
    guidance_rescale: float
    clip_skip: int | None
    scheduler: str | None
    loras: Mapping[str, float] = field(default_factory=dict)
    strength: float | None = None
    image_guidance_scale: float | None = None


def draw_jobs(name: str, seed: int, count: int) -> list[PictureJob]:
    """Return the jobs of a checkpoint."""
    random = Random(f"{name} {seed}")
    return [_draw_job(KNOWN[name], random) for _ in range(count)]


def draw_side(name: str, seed: int) -> tuple[int, int]:
    """Return height and width of all images of a checkpoint. Some pipelines take only squares."""
    return Random(f"{name} {seed} side").choice(SIDES)


def takes_image(checkpoint: KnownCheckpoint) -> bool:
    return "Inpaint" in checkpoint.pipeline or "Pix2Pix" in checkpoint.pipeline


def draw_image(side: tuple[int, int], seed: int) -> NDArray[np.uint8]:
    """Return an image of noise that was smoothed, uint8 `[height, width, 3]`."""
    coarse = np.random.RandomState(seed).uniform(0, 255, (side[0] // 8, side[1] // 8, 3))
    return np.repeat(np.repeat(coarse, 8, 0), 8, 1).astype(np.uint8)


def draw_mask(side: tuple[int, int], seed: int) -> NDArray[np.uint8]:
    """Return a mask of one rectangle, uint8 `[height, width]`, 255 where the image is generated."""
    random, mask = Random(seed), np.zeros(side, np.uint8)
    top, left = random.randrange(side[0] // 2), random.randrange(side[1] // 2)
    mask[top : top + side[0] // 2, left : left + side[1] // 2] = 255
    return mask


def write_loras(folder: Path, shapes: Shapes, seed: int) -> None:
    """Write two files of LoRA in kohya's format, each of six attention layers of the UNet."""
    layers = sorted(
        key.removesuffix(".weight")
        for key in shapes
        if ".attn" in key and key.endswith(".weight") and len(shapes[key]) == 2
    )
    for number, name in enumerate(LORAS):
        numbers = np.random.RandomState(seed + number)
        tensors = {}
        for layer in Random(seed + number).sample(layers, 6):
            rows, columns = shapes[f"{layer}.weight"]
            key = f"lora_unet_{layer.replace('.', '_')}"
            down = numbers.standard_normal((2, columns)) / np.sqrt(columns)
            tensors[f"{key}.lora_down.weight"] = down.astype(np.float32)
            tensors[f"{key}.lora_up.weight"] = numbers.standard_normal((rows, 2)).astype(np.float32)
        save_file(tensors, folder / f"{name}.safetensors")


def write_inversion(folder: Path, *, is_xl: bool, seed: int) -> None:
    """Write the file of `TOKEN`: two vectors for each text encoder."""
    numbers = np.random.RandomState(seed)
    widths = (
        {"clip_l": TEXT_WIDTH, "clip_g": SECOND_TEXT_WIDTH} if is_xl else {"emb_params": TEXT_WIDTH}
    )
    tensors = {
        key: numbers.standard_normal((2, width)).astype(np.float32) for key, width in widths.items()
    }
    save_file(tensors, folder / "drawn.safetensors")


def as_json(jobs: Sequence[PictureJob]) -> list[dict[str, Any]]:
    return [asdict(job) for job in jobs]


def _draw_job(checkpoint: KnownCheckpoint, random: Random) -> PictureJob:
    pipeline = checkpoint.pipeline
    is_edit, is_inpainting = "Pix2Pix" in pipeline, "Inpaint" in pipeline
    names = (None, *_SCHEDULERS)
    is_edm = checkpoint.scheduler.startswith("EDM")
    return PictureJob(
        prompt=random.choice(_PROMPTS),
        negative_prompt=random.choice(_NEGATIVES),
        seed=random.randrange(1 << 32),
        image_index=random.choice([0, 1, 2, 7]),
        num_inference_steps=random.randint(2, MAX_STEPS),
        guidance_scale=random.choice([1.0, 3.0, 7.5, 12.0]),
        guidance_rescale=0.0 if is_edit else random.choice([0.0, 0.0, 0.7]),
        clip_skip=None if is_edit else random.choice([None, None, 1]),
        scheduler=None if is_edm else random.choice(names),
        loras={
            name: random.choice([-0.5, 0.6, 1.0])
            for name in random.sample(LORAS, random.randrange(3))
        },
        strength=random.choice([0.5, 0.8, 1.0]) if is_inpainting else None,
        image_guidance_scale=random.choice([1.0, 1.5, 2.0]) if is_edit else None,
    )
