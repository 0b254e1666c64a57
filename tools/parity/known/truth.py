"""diffusers' answers for the well-known checkpoints of `tools.parity.known.checkpoints`.

There is no input. The output is, by name and `|`: the UNet's output with guidance for the first
noise, the image, and of inpainting and image-to-image the image that starts from a noised one; and
the digests of the names and shapes of all weights.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, DiffusionPipeline, UNet2DConditionModel
from diffusers.loaders import single_file_utils
from PIL import Image
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from imagefleet.worker.engine.families.stable_diffusion.single_file_keys import (
    CLIP_PREFIXES,
    OPEN_CLIP_PREFIXES,
)
from tools.parity.checkpoints import Tensors
from tools.parity.fuzz.draft import noise
from tools.parity.fuzz.truth import ours_noise
from tools.parity.known.checkpoints import KNOWN, KnownCheckpoint
from tools.parity.known.single_file import SINGLE_FILES, content_digest, original_tensors
from tools.parity.known.write import (
    Shapes,
    current_name,
    digest,
    init_image,
    inpaint_mask,
    write_configs,
    write_weights,
)
from tools.parity.levels import to_levels

PROMPT, NEGATIVE = "a red circle on blue", "blue"
STEPS, GUIDANCE, SIDE, TIMESTEP = 3, 3.0, 64, 500.0
IMAGE_GUIDANCE, STRENGTH = 1.5, 0.7
"""The test asks for the same."""
_SIZE_OF_INPUT = ("StableDiffusionInstructPix2PixPipeline", "StableDiffusionXLImg2ImgPipeline")
"""Pipelines whose images have the size of the input."""
_TEXT_ENCODERS = {
    "CLIPTextModel": CLIPTextModel,
    "CLIPTextModelWithProjection": CLIPTextModelWithProjection,
}


def known_answers() -> tuple[Tensors, dict[str, dict[str, str]]]:
    """Return the tensors, and by checkpoint and network the digest of its weights."""
    tensors: Tensors = {}
    digests: dict[str, dict[str, str]] = {}
    for name, checkpoint in KNOWN.items():
        if not checkpoint.refused:
            with tempfile.TemporaryDirectory() as folder:
                answers, digests[name] = _answers(Path(folder), checkpoint)
            tensors |= {f"{name}|{key}": tensor for key, tensor in answers.items()}
            print(name, flush=True)
    return tensors, digests


@torch.no_grad()
def _answers(folder: Path, checkpoint: KnownCheckpoint) -> tuple[Tensors, dict[str, str]]:
    write_configs(folder, checkpoint)
    digests = {}
    for network, shapes in weight_shapes(checkpoint).items():
        write_weights(folder, checkpoint, network, shapes)
        digests[network] = digest(shapes)
    variant = "fp16" if checkpoint.half_only else None
    pipeline = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32, variant=variant)
    pipeline.set_progress_bar_config(disable=True)
    outputs = _record_unet(pipeline)
    answers = {"output": outputs[0], "image": _image(pipeline)}
    if "Inpaint" in checkpoint.pipeline or "Img2Img" in checkpoint.pipeline:
        answers["noised"] = _image(pipeline, strength=STRENGTH)
    return answers, digests


def _image(pipeline: Any, **parameters: Any) -> torch.Tensor:
    images = _generate(pipeline, "np", **parameters)
    return torch.from_numpy(to_levels(images)).contiguous()


def _record_unet(pipeline: Any) -> list[torch.Tensor]:
    """Return a list that will get the UNet's first output, of the noise and with guidance."""
    outputs: list[torch.Tensor] = []

    def replace_inputs(_module: object, args: Any, kwargs: Any) -> Any:
        if outputs:
            return None
        inputs = args[0].clone()  # the channels after the fourth are not noise
        inputs[:, :4] = torch.from_numpy(noise((1, 4, SIDE // 8, SIDE // 8)))
        return (inputs, torch.tensor(TIMESTEP)), kwargs

    def record(_module: object, _args: object, _kwargs: object, out: Any) -> None:
        if not outputs:
            raw = out[0]
            outputs.append(_guided(raw).clone().contiguous())

    first = pipeline.unet.register_forward_pre_hook(replace_inputs, with_kwargs=True)
    with_record = pipeline.unet.register_forward_hook(record, with_kwargs=True)
    _generate(pipeline, "latent")
    first.remove()
    with_record.remove()
    return outputs


def _guided(raw: torch.Tensor) -> torch.Tensor:
    if len(raw) == 1:
        return raw
    if len(raw) == 2:
        return raw[:1] + GUIDANCE * (raw[1:] - raw[:1])
    both, image, without = raw.chunk(3)
    return without + GUIDANCE * (both - image) + IMAGE_GUIDANCE * (image - without)


def _generate(pipeline: Any, output_type: str, strength: float = 1.0) -> Any:
    name = type(pipeline).__name__
    extra: dict[str, Any] = {"height": SIDE, "width": SIDE}
    # LatentConsistencyModelPipeline has no negative prompt.
    extra |= {} if name.startswith("LatentConsistency") else {"negative_prompt": NEGATIVE}
    if "Inpaint" in name or "Pix2Pix" in name or "Img2Img" in name:
        extra["image"] = Image.fromarray(init_image(SIDE))
    if "Inpaint" in name:
        extra |= {"mask_image": Image.fromarray(inpaint_mask(SIDE)), "strength": strength}
    if "Pix2Pix" in name:
        extra["image_guidance_scale"] = IMAGE_GUIDANCE
    if "Img2Img" in name:
        extra["strength"] = strength
    if name in _SIZE_OF_INPUT:
        extra = {key: value for key, value in extra.items() if key not in ("height", "width")}
    with ours_noise():
        return pipeline(
            PROMPT,
            num_inference_steps=STEPS,
            guidance_scale=GUIDANCE,
            output_type=output_type,
            **extra,
        ).images


def converted_single_files() -> dict[str, dict[str, str]]:
    """Return the digest of what diffusers makes of files in the original format.

    It is by checkpoint and network, over the keys of diffusers and their tensors.
    """
    answers: dict[str, dict[str, str]] = {}
    for name in SINGLE_FILES:
        networks = _networks(KNOWN[name])
        file = {
            key: torch.from_numpy(tensor)
            for key, tensor in original_tensors(name, _shapes_of(networks)).items()
        }
        answers[name] = {}
        for network, module in networks.items():
            tensors = _convert(network, module, file)
            missing = {current_name(key) for key, _ in module.named_parameters()} - tensors.keys()
            if missing:
                raise ValueError(f"diffusers finds no {sorted(missing)[:3]} in {name}")
            answers[name][network] = content_digest(
                {key: tensor.float().contiguous().numpy() for key, tensor in tensors.items()}
            )
    return answers


def _convert(network: str, module: Any, file: Tensors) -> Tensors:
    if network == "unet":
        return dict(single_file_utils.convert_ldm_unet_checkpoint(file, config=module.config))
    if network == "vae":
        return dict(single_file_utils.convert_ldm_vae_checkpoint(file, config=module.config))
    places = (*CLIP_PREFIXES[network], *OPEN_CLIP_PREFIXES[network])
    prefix = next(each for each in places if any(key.startswith(each) for key in file))
    if prefix in CLIP_PREFIXES[network]:
        found = single_file_utils.convert_ldm_clip_checkpoint(file)
    else:
        found = single_file_utils.convert_open_clip_checkpoint(module, file, prefix=prefix)
    return {current_name(key): tensor for key, tensor in found.items()}


def weight_shapes(checkpoint: KnownCheckpoint) -> dict[str, Shapes]:
    """Return the names and shapes of the weights of each network, as the libraries have them."""
    return _shapes_of(_networks(checkpoint))


def _shapes_of(networks: Mapping[str, torch.nn.Module]) -> dict[str, Shapes]:
    return {
        name: {key: tuple(weight.shape) for key, weight in network.named_parameters()}
        for name, network in networks.items()
    }


def _networks(checkpoint: KnownCheckpoint) -> dict[str, torch.nn.Module]:
    networks: dict[str, torch.nn.Module] = {
        "unet": UNet2DConditionModel.from_config(dict(checkpoint.unet)),
        "vae": AutoencoderKL.from_config(dict(checkpoint.vae)),
    }
    for name, (class_name, config) in checkpoint.text_encoders.items():
        networks[name] = _TEXT_ENCODERS[class_name](CLIPTextConfig(**config))
    return networks
