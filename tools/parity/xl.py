"""A tiny checkpoint of Stable Diffusion XL, and PyTorch's results for it.

Input: a folder. Output: a random checkpoint there, in half precision, and named tensors: inputs and
outputs of every part.
"""

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from tools.parity.answers import generate, run_unet, run_vae, tokenize
from tools.parity.checkpoints import (
    OF_OTHERS,
    SIZE,
    Tensors,
    make_tokenizer,
    randomise,
    save,
    scale_down_output,
)

POOLED, SINUSOIDS = 12, 8
HALF = torch.float16


def unet() -> UNet2DConditionModel:
    """Return a UNet with the structure of SDXL-base, but smaller in every number."""
    return UNet2DConditionModel(
        sample_size=SIZE,
        block_out_channels=(8, 16, 16),
        layers_per_block=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        cross_attention_dim=40,
        attention_head_dim=(1, 2, 4),
        transformer_layers_per_block=(1, 2, 3),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=SINUSOIDS,
        projection_class_embeddings_input_dim=POOLED + 6 * SINUSOIDS,
    )


def text_config(width: int, activation: str, vocabulary_size: int) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=vocabulary_size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=3,
        num_attention_heads=2,
        hidden_act=activation,
        projection_dim=POOLED,
        # As in SDXL's files, which predate this field's meaning: the end is the highest id.
        eos_token_id=2,
    )


def euler_config() -> EulerDiscreteScheduler:
    """Return the scheduler of SDXL-base."""
    scheduler = EulerDiscreteScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        timestep_spacing="leading",
        steps_offset=1,
    )
    scheduler.register_to_config(**OF_OTHERS)
    return scheduler


def write_xl_checkpoint(folder: Path) -> StableDiffusionXLPipeline:
    """Write a checkpoint; return a pipeline with exactly the stored half-precision weights."""
    tokenizer = make_tokenizer(folder / "tokenizer", "<|endoftext|>")
    other = make_tokenizer(folder / "tokenizer_2", "!")
    pipeline = StableDiffusionXLPipeline(
        vae=AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 3,
            up_block_types=("UpDecoderBlock2D",) * 3,
            block_out_channels=(8, 8, 16),
            layers_per_block=1,
            norm_num_groups=4,
            scaling_factor=0.13025,
            force_upcast=True,
            sample_size=4 * SIZE,
        ),
        text_encoder=CLIPTextModel(text_config(16, "quick_gelu", len(tokenizer))),
        text_encoder_2=CLIPTextModelWithProjection(text_config(24, "gelu", len(other))),
        tokenizer=tokenizer,
        tokenizer_2=other,
        unet=unet(),
        scheduler=euler_config(),
        force_zeros_for_empty_prompt=True,
        add_watermarker=False,
    )
    generator = torch.Generator().manual_seed(4)
    for name in ("text_encoder", "text_encoder_2", "unet", "vae"):
        randomise(getattr(pipeline, name).eval(), generator, HALF)
    scale_down_output(pipeline.unet, HALF)
    save(pipeline, folder, HALF)
    return pipeline


@torch.no_grad()
def expected_of_xl(pipeline: StableDiffusionXLPipeline) -> Tensors:
    """Return inputs and outputs of every network and UNet block, and whole images."""
    tokens = [tokenize(pipeline.tokenizer), tokenize(pipeline.tokenizer_2)]
    one = pipeline.text_encoder(tokens[0], output_hidden_states=True)
    two = pipeline.text_encoder_2(tokens[1], output_hidden_states=True)
    text = torch.cat([one.hidden_states[-2], two.hidden_states[-2]], dim=-1)
    side = float(4 * SIZE)
    time_ids = torch.tensor([[side, side / 2, 0.0, 4.0, side, side]] * 2)
    tensors = {
        "tokens": torch.stack(tokens, dim=1).int(),
        "text": text,
        "text.pooled": two.text_embeds,
        "unet.time_ids": time_ids,
    }
    added = {"text_embeds": two.text_embeds[:2], "time_ids": time_ids}
    tensors |= run_unet(pipeline.unet, text[:2], added_cond_kwargs=added)
    tensors |= run_vae(pipeline.vae, tensors["unet.latents"])
    # Without any negative prompt, SDXL uses zeros, in diffusers and in the engine.
    for name, negatives in (("said", ["red", "blue"]), ("unsaid", None)):
        tensors[f"pictures.{name}"] = generate(pipeline, tensors["unet.latents"], negatives)
    return {key: tensor.clone().contiguous() for key, tensor in tensors.items()}
