"""Ask diffusers for the answers to the tiny checkpoints of `flux2_klein_case`.

There is no input. The output is the hidden states of both prompts, the output of the transformer,
inputs and outputs of each block for the first prompt, latents and pixels of the autoencoder, the
shifts of images of many sizes, and whole images.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline, Flux2Transformer2DModel
from diffusers.models.transformers.transformer_flux2 import (
    Flux2PosEmbed,
    Flux2SingleTransformerBlock,
    Flux2TransformerBlock,
)
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
from transformers import Qwen3Config, Qwen3ForCausalLM

from tools.parity.checkpoints import Tensors
from tools.parity.flow.checkpoint import write_weights
from tools.parity.flow.flux2_klein_case import (
    BLOCK_TOKENS,
    CHANNELS,
    FULL_APART,
    FULL_SIZE,
    FULL_TOKENS,
    FULL_WIDTH,
    GUIDANCES,
    HEIGHT,
    NEGATIVES,
    PIXELS_PER_TOKEN,
    PROMPTS,
    SHIFTED_STEPS,
    SHIFTED_TOKENS,
    STATES_APART,
    STEPS,
    TIMESTEPS,
    VARIANTS,
    WIDTH,
    Variant,
    full_inputs,
    write_configs,
)
from tools.parity.flow.flux2_klein_loras import CASES, LAYERS, write_loras
from tools.parity.known.write import draw, init_image
from tools.parity.levels import to_levels

_SIZE = (CHANNELS, HEIGHT // PIXELS_PER_TOKEN, WIDTH // PIXELS_PER_TOKEN)
_BLOCKS = ("transformer_blocks", "single_transformer_blocks")


def load_pipeline(variant: Variant | None = None) -> Flux2KleinPipeline:
    """Write the checkpoint, and let diffusers read it."""
    configs = (variant or Variant()).configs
    networks = {
        "text_encoder": Qwen3ForCausalLM(Qwen3Config(**configs["text_encoder"])),
        "transformer": Flux2Transformer2DModel.from_config(configs["transformer"]),
        "vae": AutoencoderKLFlux2.from_config(configs["vae"]),
    }
    with tempfile.TemporaryDirectory() as folder:
        write_configs(Path(folder), variant)
        for name, network in networks.items():
            shapes = {
                key.removeprefix("model."): tuple(each.shape)
                for key, each in network.state_dict().items()
                if key != "lm_head.weight" and not key.endswith("num_batches_tracked")
            }
            write_weights(Path(folder), name, shapes)
        pipeline = Flux2KleinPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def noise() -> torch.Tensor:
    """Return the noise at the start of both images."""
    return torch.randn((2, *_SIZE), generator=torch.Generator().manual_seed(8))


@torch.no_grad()
def flux2_klein_answers() -> Tensors:
    """Return all answers by their names."""
    pipeline = load_pipeline()
    answers = {"noise": noise(), **_transformer(pipeline), **_autoencoder(pipeline)}
    answers["shifts"] = torch.tensor(
        [
            [compute_empirical_mu(tokens, steps) for steps in SHIFTED_STEPS]
            for tokens in SHIFTED_TOKENS
        ],
        dtype=torch.float64,
    )
    for guidance in GUIDANCES:
        answers[f"image|{guidance}"] = _image(pipeline, guidance)
    for name, variant in VARIANTS.items():
        answers[name] = image_of(variant)
    answers |= _images_with_loras() | _full_blocks()
    return {key: tensor.clone().contiguous() for key, tensor in answers.items()}


def _full_blocks() -> Tensors:
    """Return outputs of a double and of a single block of the published width, with drawn
    weights."""
    sizes = {"dim": FULL_WIDTH, "num_attention_heads": 24, "attention_head_dim": 128}
    double, single = Flux2TransformerBlock(**sizes), Flux2SingleTransformerBlock(**sizes)
    for block in (double, single):
        for key, weight in block.named_parameters():
            weight.copy_(torch.from_numpy(draw("transformer", key, tuple(weight.shape))))
    text, image, modulation = map(torch.from_numpy, full_inputs())
    rows, columns = FULL_SIZE
    places = torch.zeros(FULL_TOKENS + rows * columns, 4)
    places[:FULL_TOKENS, 3] = torch.arange(FULL_TOKENS)
    places[FULL_TOKENS:, 1:3] = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    rotation = Flux2PosEmbed(2000, [32] * 4)(places)
    of_double = double(image, text, modulation, modulation, rotation)
    of_single = single(torch.cat([text, image], 1), None, modulation[:, : 3 * FULL_WIDTH], rotation)
    return {
        "full_double": torch.cat(of_double, 1)[..., ::FULL_APART],
        "full_single": of_single[..., ::FULL_APART],
    }


def _images_with_loras() -> Tensors:
    """Return an image of the first prompt for each case of `flux2_klein_loras`."""
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        write_loras(Path(folder))
        for case, scales in CASES.items():
            pipeline = load_pipeline()
            for name in scales:
                file = f"{name}.safetensors"
                pipeline.load_lora_weights(folder, weight_name=file, adapter_name=name)
            changed = [key for key in pipeline.transformer.state_dict() if "lora_A" in key]
            if len(changed) != sum(_weights_of(name) for name in scales):
                raise ValueError(f"{case}: diffusers read {changed}")
            pipeline.set_adapters(list(scales), list(scales.values()))
            first = noise()[:1]
            answers[f"lora|{case}"] = _image(pipeline, GUIDANCES[-1], count=1, latents=first)
    return answers


def _weights_of(name: str) -> int:
    """Return the number of weights that a LoRA file changes: a fused layer stands for three."""
    return sum(3 if layer.endswith("qkv") else 1 for layer in LAYERS[name])


def _transformer(pipeline: Flux2KleinPipeline) -> Tensors:
    """Return the outputs of the transformer, and of each block for the first prompt."""
    states, text_ids = pipeline.encode_prompt(list(PROMPTS))
    answers: Tensors = {"states": states[:, ::STATES_APART]}
    network = pipeline.transformer
    times = torch.tensor(TIMESTEPS) / 1000
    image_ids = pipeline._prepare_latent_ids(noise())
    given = {"encoder_hidden_states": states, "txt_ids": text_ids, "img_ids": image_ids}
    packed = pipeline._pack_latents(noise())
    answers["output"] = network(hidden_states=packed, timestep=times, **given).sample
    hooks = []
    for kind in _BLOCKS:
        for number, block in enumerate(getattr(network, kind)):
            name = f"{kind}.{number}"

            def record(_: object, __: Any, inputs: Any, output: Any, name: str = name) -> None:
                for key in ("hidden_states", "encoder_hidden_states"):
                    if inputs[key] is not None:
                        answers[f"{name}.in.{key}"] = inputs[key]
                if inputs["encoder_hidden_states"] is None:
                    answers[f"{name}.out.hidden_states"] = output
                    return
                answers[f"{name}.out.encoder_hidden_states"] = output[0]
                answers[f"{name}.out.hidden_states"] = output[1]

            hooks.append(block.register_forward_hook(record, with_kwargs=True))
    given |= {"encoder_hidden_states": states[:1, :BLOCK_TOKENS]}
    given |= {"txt_ids": text_ids[:, :BLOCK_TOKENS]}
    network(hidden_states=packed[:1], timestep=times[:1], **given)
    for hook in hooks:
        hook.remove()
    return answers


def _autoencoder(pipeline: Flux2KleinPipeline) -> Tensors:
    """Return the normalised latents of an image, and the pixels of its unfinished latents."""
    pixels = torch.from_numpy(init_image(WIDTH)[:HEIGHT]).permute(2, 0, 1)[None] / 127.5 - 1
    latents = pipeline._encode_vae_image(pixels, torch.Generator())
    vae = pipeline.vae
    deviation = torch.sqrt(vae.bn.running_var + vae.config.batch_norm_eps)
    unpacked = latents * deviation[:, None, None] + vae.bn.running_mean[:, None, None]
    decoded = vae.decode(pipeline._unpatchify_latents(unpacked)).sample
    return {"latents": latents, "decoded": decoded}


def image_of(variant: Variant, **given: Any) -> torch.Tensor:
    """Return the image of a case, uint8 `[1, h, w, 3]`. `given` are arguments of the pipeline."""
    return _image(
        load_pipeline(variant),
        variant.guidance,
        prompt=[variant.prompt],
        negative_prompt=[NEGATIVES[1]],
        height=variant.height,
        width=variant.width,
        num_inference_steps=variant.steps,
        latents=torch.from_numpy(variant.noise),
        **given,
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
    # The pipeline takes a negative prompt in this form only.
    negatives, _ = pipeline.encode_prompt(call.pop("negative_prompt"))
    call["negative_prompt_embeds"] = negatives
    images = pipeline(guidance_scale=guidance, output_type="np", **call).images
    return torch.from_numpy(to_levels(images))
