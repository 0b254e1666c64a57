"""Define the transformer of Z-Image (Z-Image Team 2025): diffusers' ZImageTransformer2DModel.

Input: noisy latents, times, and the hidden states of a text. Output: the predicted velocity from
noise to the image. Text and image are refined apart, then attend to each other as one sequence.
The text is refined once for all steps, since its refiner gets no time.

Axes: b rows, h w latent size, c latent channels, n tokens, t of them those of the text, d width of
the transformer.
"""

from functools import partial
from typing import ClassVar, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from numpy.typing import NDArray

from imagefleet.worker.engine.checkpoint.weights import WeightNames
from imagefleet.worker.engine.families.z_image.transformer_config import (
    TOKENS_MULTIPLE,
    TransformerConfig,
)
from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.networks.blocks import RmsNorm, linear, normalize
from imagefleet.worker.engine.networks.column_parts import project_joined
from imagefleet.worker.engine.networks.latent_packing import PATCH, join_patches, split_patches
from imagefleet.worker.engine.networks.modulation import project_time
from imagefleet.worker.engine.networks.rotary import Rotation, axis_angles, place_heads
from imagefleet.worker.engine.networks.sinusoids import sinusoids
from imagefleet.worker.engine.networks.token_rows import in_rows
from imagefleet.worker.engine.networks.unset_weights import zeros
from imagefleet.worker.engine.placement.mesh import target_device

SHORT_TEXTS: Final = {"cpu": (32, 128), "gpu": (128,), "tpu": (128,)}
"""By platform: steps compute the first of these numbers of tokens of a text that no text of the
batch exceeds with its padding, or all. The kernels of accelerators take blocks of 128 tokens."""
_WAVES: Final = 256
_TIME_INNER_WIDTH: Final = 1024
_HEAD_EPSILON: Final = 1e-5
_FINAL_EPSILON: Final = 1e-6


class RefinedText(NamedTuple):
    """It is a text as the transformer attends to it."""

    tokens: jax.Array
    """They are `[…, t, d]`. Those after the padded text are undefined."""
    padded_length: jax.Array
    """It is int32 `[…]` and counts the tokens of a text with its learned padding. The others are
    masked."""


class TimeEmbedding(nnx.Module):
    """It is diffusers' TimestepEmbedder."""

    def __init__(self, width: int) -> None:
        self.inner = linear(_WAVES, _TIME_INNER_WIDTH)
        self.outer = linear(_TIME_INNER_WIDTH, width)

    def __call__(self, times: jax.Array, dtype: DTypeLike) -> jax.Array:
        """Embed float32 times `[b]` as `[b, width]` of a dtype."""
        waves = sinusoids(times, _WAVES, flip_sin_to_cos=True, freq_shift=0)
        return self.outer(jax.nn.silu(self.inner(waves.astype(dtype))))


class SelfAttention(nnx.Module):
    """It is diffusers' Attention with ZSingleStreamAttnProcessor."""

    def __init__(self, config: TransformerConfig) -> None:
        width, head_dim = config.dim, config.dim // config.n_heads
        self.heads = config.n_heads
        self.to_q = linear(width, width, use_bias=False)
        self.to_k = linear(width, width, use_bias=False)
        self.to_v = linear(width, width, use_bias=False)
        self.to_out = linear(width, width, use_bias=False)
        self.norm_q = RmsNorm(head_dim, _HEAD_EPSILON) if config.qk_norm else None
        self.norm_k = RmsNorm(head_dim, _HEAD_EPSILON) if config.qk_norm else None

    def __call__(self, x: jax.Array, rotation: Rotation, mask: jax.Array | None) -> jax.Array:
        place = partial(place_heads, rotation=rotation, heads=self.heads)
        q, k = place(self.to_q(x), self.norm_q), place(self.to_k(x), self.norm_k)
        v, heads = self.to_v(x), self.heads
        return project_joined(self.to_out, attention(q, k, v, heads=heads, mask=mask))


class FeedForward(nnx.Module):
    """It is diffusers' FeedForward of Z-Image, which is gated (Shazeer 2020)."""

    def __init__(self, config: TransformerConfig) -> None:
        width, inner = config.dim, config.inner_width
        self.w1 = linear(width, inner, use_bias=False)
        self.w2 = linear(inner, width, use_bias=False)
        self.w3 = linear(width, inner, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        return project_joined(self.w2, jax.nn.silu(self.w1(x)) * self.w3(x))


class Block(nnx.Module):
    """It is diffusers' ZImageTransformerBlock. Inputs and outputs of its layers are normalised."""

    def __init__(self, config: TransformerConfig, *, is_modulated: bool = True) -> None:
        width, epsilon = config.dim, config.norm_eps
        self.attention = SelfAttention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm1 = RmsNorm(width, epsilon)
        self.attention_norm2 = RmsNorm(width, epsilon)
        self.ffn_norm1 = RmsNorm(width, epsilon)
        self.ffn_norm2 = RmsNorm(width, epsilon)
        self.modulation = linear(config.time_width, 4 * width) if is_modulated else None

    def __call__(
        self,
        x: jax.Array,
        rotation: Rotation,
        mask: jax.Array | None = None,
        time: jax.Array | None = None,
    ) -> jax.Array:
        """Map `[b, n, d]` to `[b, n, d]`.

        Args:
            x: The tokens.
            rotation: By their positions.
            mask: bool `[b, n]`: the tokens that count. None: all.
            time: The embedded times, `[b, e]`, if the block is modulated.
        """
        scales: tuple[jax.Array | float, ...] = (1.0,) * 4
        if self.modulation is not None and time is not None:
            parts = jnp.split(project_time(self.modulation, time), 4, -1)
            scale, gate, inner_scale, inner_gate = parts
            scales = (1 + scale, jnp.tanh(gate), 1 + inner_scale, jnp.tanh(inner_gate))
        hidden = self.attention(self.attention_norm1(x) * scales[0], rotation, mask)
        x += scales[1] * self.attention_norm2(hidden)
        hidden = self.feed_forward(self.ffn_norm1(x) * scales[2])
        return in_rows(x + scales[3] * self.ffn_norm2(hidden))


class FinalLayer(nnx.Module):
    """It is diffusers' FinalLayer of Z-Image."""

    def __init__(self, config: TransformerConfig) -> None:
        self.linear = linear(config.dim, config.patch_width)
        self.modulation = linear(config.time_width, config.dim)

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        """Map `[b, n, d]` to the latents of patches."""
        scale = 1 + self.modulation(jax.nn.silu(time))[:, None]
        return self.linear(normalize(x, _FINAL_EPSILON) * scale)


class Transformer(nnx.Module):
    """It is diffusers' ZImageTransformer2DModel with patches of 2x2 latents."""

    weight_names: ClassVar = WeightNames(
        to_checkpoint=(
            (r"\bx_embedder\b", f"all_x_embedder.{PATCH}-1"),
            (r"\bfinal_layer\.modulation\b", "final_layer.adaLN_modulation.1"),
            (r"\bfinal_layer\b", f"all_final_layer.{PATCH}-1"),
            (r"\bmodulation\b", "adaLN_modulation.0"),
            (r"\bto_out\b", "to_out.0"),
            (r"\bcap_norm\b", "cap_embedder.0"),
            (r"\bcap_embedder\.(weight|bias)", r"cap_embedder.1.\1"),
            (r"\bt_embedder\.inner\b", "t_embedder.mlp.0"),
            (r"\bt_embedder\.outer\b", "t_embedder.mlp.2"),
        )
    )

    def __init__(self, config: TransformerConfig) -> None:
        self.config = config
        refiners = range(config.n_refiner_layers)
        self.x_embedder = linear(config.patch_width, config.dim)
        self.x_pad_token = nnx.Param(zeros(1, config.dim))
        self.noise_refiner = nnx.List(Block(config) for _ in refiners)
        self.cap_norm = RmsNorm(config.cap_feat_dim, config.norm_eps)
        self.cap_embedder = linear(config.cap_feat_dim, config.dim)
        self.cap_pad_token = nnx.Param(zeros(1, config.dim))
        self.context_refiner = nnx.List(Block(config, is_modulated=False) for _ in refiners)
        self.t_embedder = TimeEmbedding(config.time_width)
        self.layers = nnx.List(Block(config) for _ in range(config.n_layers))
        self.final_layer = FinalLayer(config)

    def refine_text(self, states: jax.Array, lengths: jax.Array) -> RefinedText:
        """Prepare texts, once for all steps.

        Args:
            states: Hidden states of the text encoder, `[b, t, e]`, where t is a multiple of 32.
            lengths: int32 `[b]`: the tokens that are not padding; at least 1.
        """
        count = states.shape[1]
        tokens = self.cap_embedder(self.cap_norm(states))
        places = jnp.arange(count)
        is_text = places < lengths[:, None]
        tokens = jnp.where(is_text[..., None], tokens, self.cap_pad_token[...])
        padded = -(-lengths // TOKENS_MULTIPLE) * TOKENS_MULTIPLE
        mask = places < padded[:, None]
        rotation = self._text_rotation(count)
        for block in self.context_refiner:
            tokens = block(tokens, rotation, mask)
        return RefinedText(tokens, padded)

    def __call__(self, latents: jax.Array, times: jax.Array, text: RefinedText) -> jax.Array:
        """Predict the velocity from noise to the image, `[b, h, w, c]`.

        Args:
            latents: `[b, h, w, c]`.
            times: float32 `[b]`: 0 is noise, 1 the image.
            text: From `refine_text`, `[b, …]`.
        """
        rows, columns = (side // PATCH for side in latents.shape[1:3])
        time = self.t_embedder(times * self.config.t_scale, latents.dtype)
        image, rotation = self._embed(latents), self._image_rotation(rows, columns, text)
        for block in self.noise_refiner:
            image = block(image, rotation, None, time)
        short = np.array(SHORT_TEXTS[target_device().platform])
        texts = [text._replace(tokens=text.tokens[:, :count]) for count in short] + [text]
        join = [partial(self._join, image, rotation, time, each) for each in texts]
        image = jax.lax.switch(jnp.sum(text.padded_length.max() > short), join)
        return join_patches(self.final_layer(image[:, : rows * columns], time), rows, columns)

    def _join(
        self, image: jax.Array, rotation: Rotation, time: jax.Array, text: RefinedText
    ) -> jax.Array:
        """Let image and text attend to each other, and return the image's tokens."""
        batch, image_count, _ = image.shape
        joined, text_count = jnp.concatenate([image, text.tokens], axis=1), text.tokens.shape[1]
        of_texts = self._text_rotation(text_count)
        rotation = Rotation(
            *(
                jnp.concatenate([of_image, _for_rows(of_text, batch)], axis=1)
                for of_image, of_text in zip(rotation, of_texts, strict=True)
            )
        )
        is_text = jnp.arange(text_count) < text.padded_length[:, None]
        mask = jnp.concatenate([jnp.ones((batch, image_count), bool), is_text], axis=1)
        for block in self.layers:
            joined = block(joined, rotation, mask, time)
        return joined[:, :image_count]

    def _embed(self, latents: jax.Array) -> jax.Array:
        """Return the tokens of an image with its learned padding, `[b, n, d]`."""
        tokens = self.x_embedder(split_patches(latents))
        batch, count, width = tokens.shape
        padding = jnp.broadcast_to(self.x_pad_token[...], (batch, -count % TOKENS_MULTIPLE, width))
        return jnp.concatenate([tokens, padding.astype(tokens.dtype)], axis=1)

    def _text_rotation(self, count: int) -> Rotation:
        """Return the rotations of a text's tokens, which lie at the positions (1, 0, 0), …"""
        places = np.pad(1 + np.arange(count)[:, None], [(0, 0), (0, 2)])
        return Rotation.of_angles(_angles(self.config, places))

    def _image_rotation(self, rows: int, columns: int, text: RefinedText) -> Rotation:
        """Return the rotations of an image's tokens, `[b, n, …]`.

        The first number of their positions is the one after the text, the others are row and
        column. Padding lies at (0, 0, 0).
        """
        grid = np.indices((rows, columns)).reshape(2, -1).T
        places = np.zeros((len(grid) + -len(grid) % TOKENS_MULTIPLE, 3), np.int64)
        places[: len(grid), 1:] = grid
        in_grid = Rotation.of_angles(_angles(self.config, places)[:, self._first :])
        depths = np.zeros((text.tokens.shape[1] + 2, 3), np.int64)
        depths[:, 0] = np.arange(len(depths))
        table = Rotation.of_angles(_angles(self.config, depths)[:, : self._first])
        is_image = np.arange(len(places)) < len(grid)
        depth = jnp.where(is_image, 1 + text.padded_length[:, None], 0)  # [b, n]
        return Rotation(
            *(
                jnp.concatenate([of_depth, _for_rows(of_grid, len(depth))], axis=-1)
                for of_depth, of_grid in zip(table.at(depth), in_grid, strict=True)
            )
        )

    @property
    def _first(self) -> int:
        """Return the number of pairs that the first axis rotates."""
        return self.config.axes_dims[0] // 2


def _angles(config: TransformerConfig, places: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the angles of positions `[n, 3]`, `[n, width of a head / 2]`."""
    return axis_angles(places, config.axes_dims, config.rope_theta).astype(np.float32)


def _for_rows(table: jax.Array | NDArray[np.float32], rows: int) -> jax.Array:
    return jnp.broadcast_to(table, (rows, *table.shape))
