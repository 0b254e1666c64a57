"""Ask diffusers for the answers to the tiny checkpoints of `stable_diffusion_3_case`.

There is no input. The output is the states and the pooled states of both prompts, the output of the
transformer, inputs and outputs of each block for the first prompt, and whole images.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from diffusers import (
    AutoencoderKL,
    SD3Transformer2DModel,
    StableDiffusion3Img2ImgPipeline,
    StableDiffusion3InpaintPipeline,
    StableDiffusion3Pipeline,
)
from diffusers.loaders.single_file_utils import convert_sd3_t5_checkpoint_to_diffusers
from diffusers.models.autoencoders import vae
from diffusers.pipelines.stable_diffusion_3 import (
    pipeline_stable_diffusion_3_img2img,
    pipeline_stable_diffusion_3_inpaint,
)
from PIL import Image
from safetensors.torch import load_file
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, T5Config, T5EncoderModel

from tools.parity.checkpoints import Tensors
from tools.parity.flow.checkpoint import write_weights
from tools.parity.flow.stable_diffusion_3_case import (
    BLOCK_TOKENS,
    CHANNELS,
    CLIP_SKIP,
    DOWNSAMPLING,
    GUIDANCES,
    HEIGHT,
    NEGATIVES,
    PROMPTS,
    STATES_APART,
    STEPS,
    STRENGTH,
    T5_LEFT_OUT,
    TIMESTEPS,
    VARIANTS,
    WIDTH,
    Variant,
    write_configs,
)
from tools.parity.flow.stable_diffusion_3_loras import CASES, LAYERS, write_loras
from tools.parity.flow.stable_diffusion_3_single_file import (
    SINGLE_FILES,
    SingleFile,
    write_single_file,
)
from tools.parity.flow.t5_truth import encoder_shapes
from tools.parity.known.write import init_image, inpaint_mask
from tools.parity.levels import to_levels

_SIZE = (CHANNELS, HEIGHT // DOWNSAMPLING, WIDTH // DOWNSAMPLING)


def load_pipeline(
    variant: Variant | None = None, *, leaves_t5_out: bool = False
) -> StableDiffusion3Pipeline:
    """Write the checkpoint, and let diffusers read it, perhaps without its T5."""
    variant = variant or Variant()
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), variant)
        has_t5 = variant.t5 is not None and not leaves_t5_out
        absent = {} if has_t5 else {"text_encoder_3": None, "tokenizer_3": None}
        pipeline = StableDiffusion3Pipeline.from_pretrained(
            folder, torch_dtype=torch.float32, **absent
        )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def write_checkpoint(folder: Path, variant: Variant) -> None:
    """Write the checkpoint, with the weights that diffusers' networks have."""
    configs = variant.configs
    write_configs(folder, variant)
    networks = {
        "transformer": SD3Transformer2DModel.from_config(configs["transformer"]),
        "vae": AutoencoderKL.from_config(configs["vae"]),
    }
    for name in ("text_encoder", "text_encoder_2"):
        networks[name] = CLIPTextModelWithProjection(CLIPTextConfig(**configs[name]))
    for name, network in networks.items():
        write_weights(folder, name, _shapes(network))
    if variant.t5 is not None:
        t5 = T5EncoderModel(T5Config(**configs["text_encoder_3"]))
        write_weights(folder, "text_encoder_3", encoder_shapes(t5))


def noise() -> torch.Tensor:
    """Return the noise at the start of both images, and of their encoding."""
    return torch.randn((2, *_SIZE), generator=torch.Generator().manual_seed(8))


@torch.no_grad()
def stable_diffusion_3_answers() -> Tensors:
    """Return all answers by their names."""
    pipeline = load_pipeline()
    answers = {"noise": noise(), **_transformer(pipeline)}
    for guidance in GUIDANCES:
        answers[f"image|{guidance}"] = _image(pipeline, guidance, latents=noise())
    answers["clip_skip"] = _image(
        pipeline, GUIDANCES[-1], count=1, latents=noise()[:1], clip_skip=CLIP_SKIP
    )
    for name, variant in VARIANTS.items():
        answers[name] = image_of(variant)
    answers[T5_LEFT_OUT] = _image(
        load_pipeline(leaves_t5_out=True), GUIDANCES[-1], count=1, latents=noise()[:1]
    )
    for name, file in SINGLE_FILES.items():
        answers[name] = _image_of_single_file(file)
    answers |= {**_from_images(pipeline), **_images_with_loras()}
    return {key: tensor.clone().contiguous() for key, tensor in answers.items()}


def _image_of_single_file(file: SingleFile) -> torch.Tensor:
    """Return the image of the first prompt by a file with all weights."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_single_file(Path(folder), file, _shapes_of_parts(file.variant))
        t5 = None
        if file.has_t5:
            # With transformers 5.23, diffusers leaves norms of T5 without weights.
            t5 = T5EncoderModel(T5Config(**file.variant.configs["text_encoder_3"])).eval()
            t5.load_state_dict(
                convert_sd3_t5_checkpoint_to_diffusers(load_file(path)), strict=False
            )
        pipeline = StableDiffusion3Pipeline.from_single_file(
            str(path),
            config=str(path.with_suffix("")),
            text_encoder_3=t5,
            torch_dtype=torch.float32,
        )
    pipeline.set_progress_bar_config(disable=True)
    return _image(pipeline, GUIDANCES[-1], count=1, latents=noise()[:1])


def _shapes_of_parts(variant: Variant) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shapes of all weights by network, under the keys of current files."""
    pipeline = load_pipeline(variant)
    shapes = {name: _shapes(getattr(pipeline, name)) for name in ("transformer", "vae")}
    for name in ("text_encoder", "text_encoder_2"):
        of_clip = _shapes(getattr(pipeline, name))
        shapes[name] = {key.removeprefix("text_model."): of_clip[key] for key in of_clip}
    return {**shapes, "text_encoder_3": encoder_shapes(pipeline.text_encoder_3)}


def _shapes(network: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {key: tuple(each.shape) for key, each in network.state_dict().items()}


def _images_with_loras() -> Tensors:
    """Return an image of the first prompt for each case of `stable_diffusion_3_loras`."""
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        write_loras(Path(folder))
        for case, scales in CASES.items():
            pipeline = load_pipeline()
            for name in scales:
                file = f"{name}.safetensors"
                pipeline.load_lora_weights(folder, weight_name=file, adapter_name=name)
            networks = (pipeline.transformer, pipeline.text_encoder, pipeline.text_encoder_2)
            changed = [key for each in networks for key in each.state_dict() if "lora_A" in key]
            if len(changed) != sum(len(LAYERS[name]) for name in scales):
                raise ValueError(f"{case}: diffusers read {changed}")
            pipeline.set_adapters(list(scales), list(scales.values()))
            first = noise()[:1]
            answers[f"lora|{case}"] = _image(pipeline, GUIDANCES[-1], count=1, latents=first)
    return answers


def _from_images(pipeline: StableDiffusion3Pipeline) -> Tensors:
    answers: Tensors = {}
    image = Image.fromarray(init_image(WIDTH)[:HEIGHT])
    mask = Image.fromarray(inpaint_mask(WIDTH)[:HEIGHT])
    modules = (
        vae,
        pipeline_stable_diffusion_3_img2img,
        pipeline_stable_diffusion_3_inpaint,
    )
    with ExitStack() as patches:
        for module in modules:
            patches.enter_context(
                patch.object(module, "randn_tensor", lambda *_, **__: noise()[:1])
            )
        for name, kind, extra in (
            ("img2img", StableDiffusion3Img2ImgPipeline, {"strength": STRENGTH}),
            ("inpaint", StableDiffusion3InpaintPipeline, {"mask_image": mask}),
            (
                "inpaint at strength 1",
                StableDiffusion3InpaintPipeline,
                {"mask_image": mask, "strength": 1.0},
            ),
        ):
            other = kind(**pipeline.components)
            other.set_progress_bar_config(disable=True)
            answers[name] = _decoded(other, image=image, **extra)
    return answers


def _decoded(pipeline: Any, **given: Any) -> torch.Tensor:
    """Return an image that the formula of the other pipelines decodes."""
    call = {"prompt": PROMPTS[0], "negative_prompt": NEGATIVES[0], "num_inference_steps": STEPS}
    size = {"height": HEIGHT, "width": WIDTH}
    latents = pipeline(
        guidance_scale=GUIDANCES[-1], output_type="latent", **call, **size, **given
    ).images
    return torch.from_numpy(to_levels(decode(pipeline, latents)))


def decode(pipeline: Any, latents: torch.Tensor) -> Any:
    """Return the pixels of latents, as two of the three pipelines decode them.

    That of inpainting forgets the shift of the autoencoder.
    """
    config = pipeline.vae.config
    pixels = pipeline.vae.decode(latents / config.scaling_factor + config.shift_factor).sample
    return pipeline.image_processor.postprocess(pixels, output_type="np")


def _transformer(pipeline: StableDiffusion3Pipeline) -> Tensors:
    """Return the outputs of the transformer, and of each block for the first prompt."""
    states, _, pooled, _ = pipeline.encode_prompt(list(PROMPTS), None, None)
    answers: Tensors = {"states": states[:, ::STATES_APART], "pooled": pooled}
    network, times = pipeline.transformer, torch.tensor(TIMESTEPS)
    answers["output"] = network(
        noise(), timestep=times, encoder_hidden_states=states, pooled_projections=pooled
    ).sample
    hooks = []
    for number, block in enumerate(network.transformer_blocks):

        def record(_: object, __: Any, inputs: Any, output: Any, number: int = number) -> None:
            for key in ("hidden_states", "encoder_hidden_states"):
                answers[f"{number}.in.{key}"] = inputs[key]
            answers[f"{number}.out.hidden_states"] = output[1]
            if output[0] is not None:
                answers[f"{number}.out.encoder_hidden_states"] = output[0]

        hooks.append(block.register_forward_hook(record, with_kwargs=True))
    network(
        noise()[:1],
        timestep=times[:1],
        encoder_hidden_states=states[:1, :BLOCK_TOKENS],
        pooled_projections=pooled[:1],
    )
    for hook in hooks:
        hook.remove()
    return answers


def image_of(variant: Variant) -> torch.Tensor:
    """Return the image of a case, uint8 `[1, h, w, 3]`."""
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
        **given,
    }
    images = pipeline(guidance_scale=guidance, output_type="np", **call).images
    return torch.from_numpy(to_levels(images))
