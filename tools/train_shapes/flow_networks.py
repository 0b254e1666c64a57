"""The transformer, its text encoder and its schedule, built with diffusers and transformers.

Their configurations are those of Z-Image, only narrower. `predict` is the transformer's forward
pass for captions that all have at most 32 tokens with their chat, in one batch without lists. This
module uses no data and trains nothing.
"""

from __future__ import annotations

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImageTransformer2DModel
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model

from tools.train_shapes.networks import LATENT_CHANNELS, LATENT_SIDE
from tools.train_shapes.qwen_tokenizer import LENGTH

TEXT_WIDTH = 96
WIDTH = 128
HEAD_AXES = (8, 12, 12)
"""The numbers of a head that are rotated by the place in the text, in the rows, in the columns."""
LAYERS = 5
CAPTION_TOKENS = 32
"""Z-Image pads captions to a multiple of this number. Ours with their chat are shorter."""
PATCH = 2
SHIFT = 3.0


def build_qwen(*, vocabulary_size: int) -> Qwen3Model:
    """Build the text encoder. Z-Image reads its last but one state, so the last layer is idle."""
    return Qwen3Model(
        Qwen3Config(
            vocab_size=vocabulary_size,
            hidden_size=TEXT_WIDTH,
            intermediate_size=2 * TEXT_WIDTH,
            num_hidden_layers=3,
            num_attention_heads=3,
            num_key_value_heads=3,
            head_dim=32,
            max_position_embeddings=LENGTH,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
        )
    )


def build_transformer() -> ZImageTransformer2DModel:
    """Build the transformer between noisy latents and the way from noise to latents."""
    transformer = ZImageTransformer2DModel(
        in_channels=LATENT_CHANNELS,
        dim=WIDTH,
        n_layers=LAYERS,
        n_refiner_layers=1,
        n_heads=WIDTH // sum(HEAD_AXES),
        n_kv_heads=WIDTH // sum(HEAD_AXES),
        cap_feat_dim=TEXT_WIDTH,
        axes_dims=list(HEAD_AXES),
        axes_lens=[2 * LENGTH, 64, 64],
    )
    _silence_residuals(transformer)
    return transformer


def build_flow_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Build the scheduler."""
    return FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=SHIFT)


def predict(
    transformer: ZImageTransformer2DModel,
    latents: Tensor,
    times: Tensor,
    states: Tensor,
    used: Tensor,
) -> Tensor:
    """Return what `transformer` predicts, (batch, 4, 16, 16): latents minus noise.

    Args:
        transformer: The network.
        latents: Noisy latents, (batch, 4, 16, 16).
        times: The share of the way from noise to latents that lies behind, (batch,).
        states: Hidden states of the captions, (batch, 32, text width).
        used: Which of them are no padding, (batch, 32).
    """
    batch, side = len(latents), LATENT_SIDE // PATCH
    moment = transformer.t_embedder(times * transformer.t_scale)
    patches = latents.view(batch, LATENT_CHANNELS, side, PATCH, side, PATCH)
    patches = patches.permute(0, 2, 4, 3, 5, 1).reshape(batch, side * side, -1)
    text_angles, image_angles = (each.expand(batch, -1, -1) for each in _angles(transformer))
    image = transformer.all_x_embedder["2-1"](patches)
    for layer in transformer.noise_refiner:
        image = layer(image, None, image_angles, moment)
    text = transformer.cap_embedder(states)
    text = torch.where(used.unsqueeze(-1), text, transformer.cap_pad_token.to(text.dtype))
    for layer in transformer.context_refiner:
        text = layer(text, None, text_angles)
    joint = torch.cat([image, text], dim=1)
    angles = torch.cat([image_angles, text_angles], dim=1)
    for layer in transformer.layers:
        joint = layer(joint, None, angles, moment)
    # The last layer normalises each token alone, so that the text's need not pass it.
    out = transformer.all_final_layer["2-1"](joint[:, : side * side], c=moment)
    out = out.view(batch, side, side, PATCH, PATCH, LATENT_CHANNELS).permute(0, 5, 1, 3, 2, 4)
    return out.reshape(latents.shape)


def _angles(transformer: ZImageTransformer2DModel) -> tuple[Tensor, Tensor]:
    side = LATENT_SIDE // PATCH
    place = torch.arange(CAPTION_TOKENS) + 1
    text = torch.stack([place, torch.zeros_like(place), torch.zeros_like(place)], dim=1)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    first = torch.full_like(rows, CAPTION_TOKENS + 1)
    image = torch.stack([first, rows, columns], dim=-1).reshape(-1, 3)
    return transformer.rope_embedder(text), transformer.rope_embedder(image)


def _silence_residuals(transformer: ZImageTransformer2DModel) -> None:
    # Residual branches that start at zero let the learning rate start high.
    silent = [transformer.all_final_layer["2-1"].linear]
    silent.append(transformer.all_final_layer["2-1"].adaLN_modulation[1])
    for layer in (*transformer.noise_refiner, *transformer.layers):
        silent.append(layer.adaLN_modulation[0])
    for linear in silent:
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
    nn.init.normal_(transformer.cap_pad_token, std=0.02)
