"""Export the networks as a checkpoint folder of Z-Image.

The folder has fp16 safetensors, and `ZImagePipeline.from_pretrained` opens it. The model card
beside the weights is written by hand.
"""

from __future__ import annotations

from pathlib import Path

from diffusers import AutoencoderKL, ZImagePipeline, ZImageTransformer2DModel
from transformers import Qwen2Tokenizer, Qwen3Model

from tools.train_shapes.captions import vocabulary
from tools.train_shapes.export import fresh_checkpoint, halved
from tools.train_shapes.flow_networks import build_flow_scheduler
from tools.train_shapes.qwen_tokenizer import write_qwen_tokenizer
from tools.train_shapes.scenes import SIDE

DEFAULTS = {"num_inference_steps": 20, "guidance_scale": 2.0, "height": SIDE, "width": SIDE}
"""What a worker uses if a job does not say."""


def export_flow_checkpoint(
    folder: Path,
    *,
    autoencoder: AutoencoderKL,
    text_encoder: Qwen3Model,
    transformer: ZImageTransformer2DModel,
) -> None:
    """Replace the checkpoint in `folder`, and keep the other files there."""
    with fresh_checkpoint(folder, DEFAULTS) as fresh:
        write_qwen_tokenizer(fresh / "tokenizer", vocabulary())
        pipeline = ZImagePipeline(
            vae=halved(autoencoder),
            text_encoder=halved(text_encoder),
            transformer=halved(transformer),
            tokenizer=Qwen2Tokenizer.from_pretrained(fresh / "tokenizer"),
            scheduler=build_flow_scheduler(),
        )
        # The pipeline adds the shift to latents, and fails at none.
        pipeline.vae.register_to_config(shift_factor=0.0)
        pipeline.save_pretrained(fresh, safe_serialization=True)
