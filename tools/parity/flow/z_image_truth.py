"""Ask diffusers for the answers to the tiny checkpoints of `z_image_case`.

There is no input. The output is the hidden states of both prompts, the output of the transformer,
inputs and outputs of each block for the first prompt, whole images, and the steps that a strength
leaves out.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    ZImageImg2ImgPipeline,
    ZImageInpaintPipeline,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from diffusers.models.autoencoders import vae
from diffusers.models.transformers.transformer_z_image import (
    RopeEmbedder,
    ZImageTransformerBlock,
)
from diffusers.pipelines.z_image import pipeline_z_image_img2img, pipeline_z_image_inpaint
from PIL import Image
from transformers import Qwen3Config, Qwen3Model

from tools.parity.checkpoints import Tensors
from tools.parity.flow.checkpoint import write_weights
from tools.parity.flow.z_image_case import (
    CHANNELS,
    DOWNSAMPLING,
    FULL_TOKENS,
    GUIDANCES,
    HEIGHT,
    LIMITED_START,
    LIMITS,
    MOST_STEPS,
    NEGATIVES,
    PROMPTS,
    STEPS,
    STRENGTH,
    STRENGTHS,
    TIMES,
    VARIANTS,
    WIDTH,
    Variant,
    full_inputs,
    write_configs,
)
from tools.parity.flow.z_image_loras import CASES, FORMATS, LAYERS, write_loras
from tools.parity.known.write import draw, init_image, inpaint_mask
from tools.parity.levels import to_levels

_SIZE = (CHANNELS, HEIGHT // DOWNSAMPLING, WIDTH // DOWNSAMPLING)
_BLOCKS = ("noise_refiner", "context_refiner", "layers")


def load_pipeline(variant: Variant | None = None) -> ZImagePipeline:
    """Write the checkpoint, and let diffusers read it."""
    configs = (variant or Variant()).configs
    networks = {
        "text_encoder": Qwen3Model(Qwen3Config(**configs["text_encoder"])),
        "transformer": ZImageTransformer2DModel.from_config(configs["transformer"]),
        "vae": AutoencoderKL.from_config(configs["vae"]),
    }
    with tempfile.TemporaryDirectory() as folder:
        write_configs(Path(folder), variant)
        for name, network in networks.items():
            shapes = {key: tuple(each.shape) for key, each in network.named_parameters()}
            write_weights(Path(folder), name, shapes)
        pipeline = ZImagePipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def noise() -> torch.Tensor:
    """Return the noise at the start of both images, and of their encoding."""
    return torch.randn((2, *_SIZE), generator=torch.Generator().manual_seed(8))


@torch.no_grad()
def z_image_answers() -> Tensors:
    """Return all answers by their names."""
    pipeline = load_pipeline()
    answers = {"noise": noise(), **_transformer(pipeline)}
    for guidance in GUIDANCES:
        answers[f"image|{guidance}"] = _image(pipeline, guidance)
    for name, limits in LIMITS.items():
        given: dict[str, Any] = {"latents": noise()[:1], **limits}
        answers[f"limits|{name}"] = _image(pipeline, GUIDANCES[-1], count=1, **given)
    for name, variant in VARIANTS.items():
        answers[name] = _image_of(variant)
    answers |= _full_block()
    answers |= _images_with_loras()
    answers["lora_formats"] = _lora_formats(load_pipeline())
    image = Image.fromarray(init_image(WIDTH)[:HEIGHT])
    mask = Image.fromarray(inpaint_mask(WIDTH)[:HEIGHT])
    modules = (vae, pipeline_z_image_img2img, pipeline_z_image_inpaint)
    with ExitStack() as patches:
        for module in modules:
            patches.enter_context(
                patch.object(module, "randn_tensor", lambda *_, **__: noise()[:1])
            )
        for name, kind, extra in (
            ("img2img", ZImageImg2ImgPipeline, {"strength": STRENGTH}),
            ("img2img, limited", ZImageImg2ImgPipeline, {"strength": STRENGTH, **LIMITED_START}),
            ("inpaint", ZImageInpaintPipeline, {"strength": STRENGTH, "mask_image": mask}),
            ("inpaint by default", ZImageInpaintPipeline, {"mask_image": mask}),
        ):
            other = kind(**pipeline.components)
            other.set_progress_bar_config(disable=True)
            given = {**extra, "image": image, "latents": None}
            answers[name] = _image(other, GUIDANCES[-1], count=1, **given)
            if name in ("img2img", "inpaint"):
                answers[f"{name}.skipped"] = _skipped(other)
    return {key: tensor.clone().contiguous() for key, tensor in answers.items()}


def _full_block() -> Tensors:
    """Return the output of one block of the published width, with drawn weights."""
    block = ZImageTransformerBlock(0, 3840, 30, 30, 1e-5, True)
    for key, weight in block.named_parameters():
        weight.copy_(torch.from_numpy(draw("transformer", key, tuple(weight.shape))))
    tokens, time = map(torch.from_numpy, full_inputs())
    places = torch.zeros(FULL_TOKENS, 3, dtype=torch.int64)
    places[:, 0] = 1 + torch.arange(FULL_TOKENS)
    rope = RopeEmbedder(theta=256.0, axes_dims=[32, 48, 48], axes_lens=[1536, 512, 512])
    return {"full_block": block(tokens, None, rope(places)[None], time)}


def _images_with_loras() -> Tensors:
    """Return an image of the first prompt for each case of `z_image_loras`."""
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        write_loras(Path(folder))
        for case, scales in CASES.items():
            pipeline = load_pipeline()
            for name in scales:
                file = f"{name}.safetensors"
                pipeline.load_lora_weights(folder, weight_name=file, adapter_name=name)
            changed = [key for key in pipeline.transformer.state_dict() if "lora_A" in key]
            if len(changed) != sum(len(LAYERS[name]) for name in scales):
                raise ValueError(f"{case}: diffusers read {changed}")
            pipeline.set_adapters(list(scales), list(scales.values()))
            first = noise()[:1]
            answers[f"lora|{case}"] = _image(pipeline, GUIDANCES[-1], count=1, latents=first)
    return answers


def _lora_formats(pipeline: ZImagePipeline) -> torch.Tensor:
    """Return for each of `FORMATS` whether diffusers reads it, and adds what it says."""
    answers = []
    for each in FORMATS:
        tensors = {key: torch.from_numpy(tensor) for key, tensor in each.tensors.items()}
        try:
            pipeline.load_lora_weights(tensors, adapter_name="a")
        except (ValueError, IndexError):  # PEFT's errors of unknown layers are of the former
            answers.append(False)
            continue
        layers = dict(pipeline.transformer.named_modules())
        answers.append("a" in getattr(layers[each.weights[0]], "lora_A", {}))
        for name, change in zip(each.weights, each.changes, strict=True):
            if answers[-1]:
                np.testing.assert_allclose(
                    layers[name].get_delta_weight("a"), change, rtol=1e-5, atol=1e-6
                )
        pipeline.unload_lora_weights()
    return torch.tensor(answers)


def _transformer(pipeline: ZImagePipeline) -> Tensors:
    """Return the outputs of the transformer, and of each block for the first prompt."""
    texts, _ = pipeline.encode_prompt(list(PROMPTS), do_classifier_free_guidance=False)
    answers: Tensors = {"states": torch.cat(texts)}
    images = list(noise().unsqueeze(2))
    network = pipeline.transformer
    answers["output"] = torch.stack(network(images, torch.tensor(TIMES), texts).sample)[:, :, 0]
    hooks = []
    for kind in _BLOCKS:
        for number, block in enumerate(getattr(network, kind)):
            name = f"{kind}.{number}"

            def record(_: object, inputs: Any, output: Any, name: str = name) -> None:
                answers[f"{name}.in"], answers[f"{name}.out"] = inputs[0][0], output[0]

            hooks.append(block.register_forward_hook(record))
    network(images[:1], torch.tensor(TIMES[:1]), texts[:1])
    for hook in hooks:
        hook.remove()
    return answers


def _skipped(pipeline: Any) -> torch.Tensor:
    """Return the first steps that each strength leaves out, `[strengths, steps]`."""
    rows = []
    for strength in STRENGTHS:
        row = []
        for steps in range(1, MOST_STEPS + 1):
            pipeline.scheduler.set_timesteps(steps)
            row.append(steps - pipeline.get_timesteps(steps, strength, "cpu")[1])
        rows.append(row)
    return torch.tensor(rows)


def _image_of(variant: Variant) -> torch.Tensor:
    return _image(
        load_pipeline(variant),
        variant.guidance,
        prompt=[variant.prompt],
        negative_prompt=[NEGATIVES[1]],
        height=variant.height,
        width=variant.width,
        num_inference_steps=variant.steps,
        latents=torch.from_numpy(variant.noise),
    )


def _image(pipeline: Any, guidance: float, *, count: int = 2, **given: Any) -> torch.Tensor:
    call = {
        "prompt": list(PROMPTS[:count]),
        "negative_prompt": list(NEGATIVES[:count]),
        "height": HEIGHT,
        "width": WIDTH,
        "num_inference_steps": STEPS,
        "latents": noise(),
        **given,
    }
    images = pipeline(guidance_scale=guidance, output_type="np", **call).images
    return torch.from_numpy(to_levels(images))
