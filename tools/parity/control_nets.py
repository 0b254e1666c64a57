"""Make tiny random ControlNets, and PyTorch's results for them.

Input: the checkpoints of `make_parity_fixtures`. Output: a folder for each net, in half precision,
and named tensors: outputs of each net, and images of jobs that differ in nets, scales and shares.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from diffusers import (
    ControlNetModel,
    DiffusionPipeline,
    HeunDiscreteScheduler,
    StableDiffusionControlNetImg2ImgPipeline,
    StableDiffusionControlNetPipeline,
    StableDiffusionXLControlNetImg2ImgPipeline,
    StableDiffusionXLControlNetPipeline,
)
from PIL import Image
from safetensors.torch import load_file

from tools.parity.answers import PROMPTS
from tools.parity.checkpoints import SIZE, Tensors, randomise, rewrite
from tools.parity.control_cases import CASES, FURTHER_CASES, NETS, ControlCase

SIDE: Final = 4 * SIZE
HALF: Final = torch.float16
_CONTROL_IMAGE: Final = ("image", "control_image")
"""The control image has these names in text to image and in image to image."""


@torch.no_grad()
def control_nets(folder: Path) -> Tensors:
    """Write the nets below `folder`, which has the checkpoints beside it, and return results.

    They are `NET|skip.N`, `NET|middle` and, by the number of the case, `CHECKPOINT|N` and
    `further CHECKPOINT|N`, uint8 `[h, w, 3]`. `images` has the control images,
    uint8 `[2, h, w, 3]`.
    """
    tensors: Tensors = {"images": torch.from_numpy(control_images())}
    for number, (name, (checkpoint, changes)) in enumerate(NETS.items()):
        pipeline = _load(folder.parent / checkpoint)
        net = ControlNetModel.from_unet(
            pipeline.unet,
            conditioning_embedding_out_channels=(4, 6, 8),
            load_weights_from_unet=False,
        )
        net = ControlNetModel.from_config({**net.config, **changes}).eval()
        randomise(net, torch.Generator().manual_seed(20 + number), HALF)
        net.save_pretrained(folder / name)
        for file in (folder / name).glob("*.safetensors"):
            rewrite(file, lambda key, tensor: {key: tensor.to(HALF)})
        for key, tensor in _outputs(net, folder.parent / checkpoint, tensors["images"]).items():
            tensors[f"{name}|{key}"] = tensor
    for before, listed in (("", CASES), ("further ", FURTHER_CASES)):
        for checkpoint, cases in listed.items():
            for number, case in enumerate(cases):
                image = _image(folder, checkpoint, case)
                tensors[f"{before}{checkpoint}|{number}"] = torch.from_numpy(image)
    return {key: tensor.clone().contiguous() for key, tensor in tensors.items()}


def control_images() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return two images of coloured squares."""
    squares = np.random.default_rng(5).integers(0, 256, (2, SIZE, SIZE, 3), np.uint8)
    return squares.repeat(4, axis=1).repeat(4, axis=2)


def _load(folder: Path) -> DiffusionPipeline:
    pipeline = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _outputs(net: ControlNetModel, checkpoint: Path, images: torch.Tensor) -> Tensors:
    """Call the net with the inputs of the checkpoint's UNet."""
    known = load_file(checkpoint / "expected.safetensors")
    added: dict[str, Any] = {}
    if "text.pooled" in known:
        added = {"text_embeds": known["text.pooled"][:2], "time_ids": known["unet.time_ids"]}
    skips, middle = net(
        known["unet.latents"],
        known["unet.times"],
        known["text"][:2],
        images.movedim(-1, 1).float() / 255,
        conditioning_scale=0.5,
        added_cond_kwargs=added,
        return_dict=False,
    )
    return {**{f"skip.{index}": skip for index, skip in enumerate(skips)}, "middle": middle}


def _image(folder: Path, checkpoint: str, case: ControlCase) -> np.ndarray[Any, Any]:
    """Return the image of a case: 6 steps."""
    pipeline: Any = _load(folder.parent / checkpoint)
    which = case.which
    latents = load_file(folder.parent / checkpoint / "expected.safetensors")["unet.latents"]
    options: dict[str, Any] = {}
    if case.net is not None:
        net = ControlNetModel.from_pretrained(folder / case.net, torch_dtype=torch.float32)
        is_xl = hasattr(pipeline, "text_encoder_2")
        kinds: list[Any] = [StableDiffusionControlNetPipeline, StableDiffusionXLControlNetPipeline]
        if case.strength is not None:
            kinds = [
                StableDiffusionControlNetImg2ImgPipeline,
                StableDiffusionXLControlNetImg2ImgPipeline,
            ]
        pipeline = kinds[is_xl](**pipeline.components, controlnet=net)
        pipeline.set_progress_bar_config(disable=True)
        options = {
            _CONTROL_IMAGE[case.strength is not None]: Image.fromarray(control_images()[which]),
            "controlnet_conditioning_scale": case.scale,
            "control_guidance_start": case.start,
            "control_guidance_end": case.end,
        }
    if case.strength is not None:
        # Latents that are given count; the init image is not used then.
        init_image = Image.fromarray(control_images()[1 - which])
        options |= {"image": init_image, "strength": case.strength}
    if case.is_heun:
        pipeline.scheduler = HeunDiscreteScheduler.from_config(pipeline.scheduler.config)
    image = pipeline(
        PROMPTS[which],
        negative_prompt="blue",
        num_inference_steps=6,
        guidance_scale=case.guidance,
        latents=latents[which : which + 1].clone(),
        output_type="np",
        **options,
    ).images[0]
    return np.asarray((image * 255).round().astype(np.uint8))
