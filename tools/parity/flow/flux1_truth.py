"""Ask diffusers for the answers to the tiny checkpoints of `flux1_case`.

There is no input. The output is the states and the pooled states of both prompts, the output of the
transformer, inputs and outputs of each block for the first prompt, and whole images.
"""

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
from diffusers import (
    AutoencoderKL,
    DiffusionPipeline,
    FluxImg2ImgPipeline,
    FluxInpaintPipeline,
    FluxPipeline,
    FluxTransformer2DModel,
)
from diffusers.loaders.single_file_utils import convert_sd3_t5_checkpoint_to_diffusers
from diffusers.models.autoencoders import vae
from diffusers.pipelines.flux import (
    pipeline_flux_fill,
    pipeline_flux_img2img,
    pipeline_flux_inpaint,
)
from PIL import Image
from safetensors.torch import load_file
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from tools.parity.checkpoints import Tensors
from tools.parity.flow.checkpoint import write_weights
from tools.parity.flow.flux1_case import (
    BLOCK_TOKENS,
    CHANNELS,
    DOWNSAMPLING,
    FILL,
    FILL_STRENGTHS,
    GUIDANCES,
    HEIGHT,
    KONTEXT,
    NEGATIVES,
    PROMPTS,
    STATES_APART,
    STEPS,
    STRENGTH,
    TIMESTEPS,
    TRUE_GUIDANCES,
    VARIANTS,
    WIDTH,
    Variant,
    write_configs,
)
from tools.parity.flow.flux1_converters import narrow_converters
from tools.parity.flow.flux1_loras import CASES, weights_of, write_loras
from tools.parity.flow.flux1_single_file import write_single_file
from tools.parity.flow.t5_truth import encoder_shapes
from tools.parity.known.write import init_image, inpaint_mask
from tools.parity.levels import to_levels

_SIZE = (CHANNELS, HEIGHT // DOWNSAMPLING, WIDTH // DOWNSAMPLING)
_BLOCKS = ("transformer_blocks", "single_transformer_blocks")
_SCALE, _NEGATIVE = TRUE_GUIDANCES["guided"]
_GUIDED: Final[Mapping[str, Any]] = {"true_cfg_scale": _SCALE, "negative_prompt": _NEGATIVE}


def load_pipeline(variant: Variant | None = None) -> Any:
    """Write the checkpoint, and let diffusers read it."""
    configs = (variant or Variant()).configs
    networks = {
        "text_encoder": CLIPTextModel(CLIPTextConfig(**configs["text_encoder"])),
        "transformer": FluxTransformer2DModel.from_config(configs["transformer"]),
        "vae": AutoencoderKL.from_config(configs["vae"]),
    }
    t5 = T5EncoderModel(T5Config(**configs["text_encoder_2"]))
    with tempfile.TemporaryDirectory() as folder:
        write_configs(Path(folder), variant)
        for name, network in networks.items():
            shapes = {key: tuple(each.shape) for key, each in network.named_parameters()}
            write_weights(Path(folder), name, shapes)
        write_weights(Path(folder), "text_encoder_2", encoder_shapes(t5))
        pipeline = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def noise() -> torch.Tensor:
    """Return the noise at the start of both images, and of their encoding."""
    return torch.randn((2, *_SIZE), generator=torch.Generator().manual_seed(8))


@torch.no_grad()
def flux1_answers() -> Tensors:
    """Return all answers by their names."""
    pipeline = load_pipeline()
    answers = {"noise": noise(), **_transformer(pipeline)}
    for guidance in GUIDANCES:
        answers[f"image|{guidance}"] = _image(pipeline, guidance, latents=_pack(noise()))
    for name, (scale, negative) in TRUE_GUIDANCES.items():
        given = {"true_cfg_scale": scale, "negative_prompt": negative}
        first = _pack(noise()[:1])
        answers[name] = _image(pipeline, GUIDANCES[-1], count=1, latents=first, **given)
    for name, variant in VARIANTS.items():
        answers[name] = image_of(variant)
    answers |= _images_with_loras()
    answers |= _from_images(pipeline)
    return {key: tensor.clone().contiguous() for key, tensor in answers.items()}


def _images_with_loras() -> Tensors:
    """Return an image of the first prompt for each case of `flux1_loras`."""
    answers = {}
    with tempfile.TemporaryDirectory() as folder, narrow_converters():
        write_loras(Path(folder))
        for case, scales in CASES.items():
            pipeline = load_pipeline()
            for name in scales:
                file = f"{name}.safetensors"
                pipeline.load_lora_weights(folder, weight_name=file, adapter_name=name)
            networks = (pipeline.transformer, pipeline.text_encoder)
            changed = [key for each in networks for key in each.state_dict() if "lora_A" in key]
            if len(changed) != sum(map(weights_of, scales)):
                raise ValueError(f"{case}: diffusers read {changed}")
            pipeline.set_adapters(list(scales), list(scales.values()))
            first = _pack(noise()[:1])
            answers[f"lora|{case}"] = _image(pipeline, GUIDANCES[-1], count=1, latents=first)
    return answers


def _from_images(pipeline: FluxPipeline) -> Tensors:
    answers: Tensors = {}
    image = Image.fromarray(init_image(WIDTH)[:HEIGHT])
    mask = Image.fromarray(inpaint_mask(WIDTH)[:HEIGHT])
    with ExitStack() as patches:
        for module in (vae, pipeline_flux_img2img, pipeline_flux_inpaint):
            patches.enter_context(
                patch.object(module, "randn_tensor", lambda *_, **__: noise()[:1])
            )
        for name, kind, extra in (
            ("img2img", FluxImg2ImgPipeline, {"strength": STRENGTH}),
            ("inpaint", FluxInpaintPipeline, {"strength": STRENGTH, "mask_image": mask}),
            ("inpaint by default", FluxInpaintPipeline, {"mask_image": mask}),
        ):
            parts = {
                key: each
                for key, each in pipeline.components.items()
                if key not in ("image_encoder", "feature_extractor")
            }
            other = kind(**parts)
            other.set_progress_bar_config(disable=True)
            given = {"image": image, **extra}
            answers[name] = _image(other, GUIDANCES[-1], count=1, **given)
            answers[f"{name}, guided"] = _image(other, GUIDANCES[-1], count=1, **given, **_GUIDED)
    kontext = load_pipeline(KONTEXT)
    given = {"image": image, "max_area": HEIGHT * WIDTH, "_auto_resize": False}
    first = {"latents": _pack(noise()[:1]), **given}
    answers["kontext"] = _image(kontext, GUIDANCES[-1], count=1, **first)
    answers["kontext, guided"] = _image(kontext, GUIDANCES[-1], count=1, **first, **_GUIDED)
    answers["single file"] = _image_of_single_file(pipeline)
    filling = load_pipeline(FILL)
    for name, strength in FILL_STRENGTHS.items():
        answers[name] = filled(filling, strength)
    return answers


def _image_of_single_file(pipeline: Any) -> torch.Tensor:
    """Return the image of the first prompt by a file with all weights."""
    networks = ("text_encoder", "text_encoder_2", "transformer", "vae")
    shapes = {
        name: {key: tuple(each.shape) for key, each in getattr(pipeline, name).named_parameters()}
        for name in networks
    }
    with tempfile.TemporaryDirectory() as folder, narrow_converters():
        file = write_single_file(Path(folder), shapes)
        # With transformers 5.23, diffusers leaves norms of T5 without weights.
        t5 = T5EncoderModel(T5Config(**Variant().configs["text_encoder_2"])).eval()
        t5.load_state_dict(convert_sd3_t5_checkpoint_to_diffusers(load_file(file)), strict=False)
        pipeline = FluxPipeline.from_single_file(
            str(file),
            config=str(file.with_suffix("")),
            text_encoder_2=t5,
            torch_dtype=torch.float32,
        )
    pipeline.set_progress_bar_config(disable=True)
    return _image(pipeline, GUIDANCES[-1], count=1, latents=_pack(noise()[:1]))


def filled(pipeline: Any, strength: float) -> torch.Tensor:
    """Return the image of the first prompt that FLUX.1 Fill makes in the mask."""
    noises = (vae, pipeline_flux_fill)
    with ExitStack() as patches:
        for module in noises:
            patches.enter_context(
                patch.object(module, "randn_tensor", lambda *_, **__: noise()[:1])
            )
        image = Image.fromarray(init_image(WIDTH)[:HEIGHT])
        mask = Image.fromarray(inpaint_mask(WIDTH)[:HEIGHT])
        given = {"image": image, "mask_image": mask, "strength": strength}
        return _image(pipeline, GUIDANCES[-1], count=1, **given)


def _transformer(pipeline: FluxPipeline) -> Tensors:
    """Return the outputs of the transformer, and of each block for the first prompt."""
    states, pooled, text_ids = pipeline.encode_prompt(list(PROMPTS))
    answers: Tensors = {"states": states[:, ::STATES_APART], "pooled": pooled}
    network = pipeline.transformer
    rows, columns = HEIGHT // DOWNSAMPLING // 2, WIDTH // DOWNSAMPLING // 2
    image_ids = pipeline._prepare_latent_image_ids(2, rows, columns, "cpu", torch.float32)
    guidance = torch.full([2], GUIDANCES[-1])
    times, packed = torch.tensor(TIMESTEPS) / 1000, _pack(noise())
    given = {"img_ids": image_ids, "txt_ids": text_ids, "encoder_hidden_states": states}
    answers["output"] = network(
        packed, timestep=times, guidance=guidance, pooled_projections=pooled, **given
    ).sample
    hooks = []
    for kind in _BLOCKS:
        for number, block in enumerate(getattr(network, kind)):
            name = f"{kind}.{number}"

            def record(_: object, __: Any, inputs: Any, output: Any, name: str = name) -> None:
                for key in ("hidden_states", "encoder_hidden_states"):
                    answers[f"{name}.in.{key}"] = inputs[key]
                answers[f"{name}.out.encoder_hidden_states"] = output[0]
                answers[f"{name}.out.hidden_states"] = output[1]

            hooks.append(block.register_forward_hook(record, with_kwargs=True))
    given |= {"encoder_hidden_states": states[:1, :BLOCK_TOKENS]}
    given |= {"txt_ids": text_ids[:BLOCK_TOKENS]}
    network(
        packed[:1],
        timestep=times[:1],
        guidance=guidance[:1],
        pooled_projections=pooled[:1],
        **given,
    )
    for hook in hooks:
        hook.remove()
    return answers


def _pack(latents: torch.Tensor) -> torch.Tensor:
    return FluxPipeline._pack_latents(latents, *latents.shape)


def image_of(variant: Variant, **given: Any) -> torch.Tensor:
    """Return the image of a case, uint8 `[1, h, w, 3]`. `given` are arguments of the pipeline."""
    return _image(
        load_pipeline(variant),
        variant.guidance,
        prompt=[variant.prompt],
        height=variant.height,
        width=variant.width,
        num_inference_steps=variant.steps,
        latents=_pack(torch.from_numpy(variant.noise)),
        max_sequence_length=variant.text_length,
        true_cfg_scale=variant.true_guidance,
        negative_prompt=NEGATIVES[1],
        **given,
    )


def _image(pipeline: Any, guidance: float, *, count: int = 2, **given: Any) -> torch.Tensor:
    call = {
        "prompt": list(PROMPTS[:count]),
        "height": HEIGHT,
        "width": WIDTH,
        "num_inference_steps": STEPS,
        **given,
    }
    images = pipeline(guidance_scale=guidance, output_type="np", **call).images
    return torch.from_numpy(to_levels(images))
