"""Define the blocks of FLUX.2's transformer (Black Forest Labs 2025), as in diffusers.

In a double block, text and image have weights of their own and attend to each other. In a single
block they are one sequence, and attention runs beside the feed-forward layer (Dehghani et al.
2023, section 2.1). Blocks of one kind share their modulation.

Axes: b rows, n tokens, t of them those of the text, d width of the transformer.
"""

import jax
from flax import nnx

from imagefleet.worker.engine.families.flux2_klein.transformer_config import TransformerConfig
from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.networks.blocks import RmsNorm, linear
from imagefleet.worker.engine.networks.column_parts import project_joined, project_parts
from imagefleet.worker.engine.networks.joint_attention import JointAttention
from imagefleet.worker.engine.networks.modulation import Modulated
from imagefleet.worker.engine.networks.rotary import Rotation, place_heads
from imagefleet.worker.engine.networks.token_rows import in_rows


class FeedForward(nnx.Module):
    """It is diffusers' Flux2FeedForward, which is gated (Shazeer 2020)."""

    def __init__(self, config: TransformerConfig) -> None:
        self.inner_width = config.inner_width
        self.linear_in = linear(config.width, 2 * config.inner_width, use_bias=False)
        self.linear_out = linear(config.inner_width, config.width, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        gate, value = project_parts(self.linear_in, x, [self.inner_width])
        return project_joined(self.linear_out, jax.nn.silu(gate) * value)


class DoubleBlock(nnx.Module):
    """It is diffusers' Flux2TransformerBlock."""

    def __init__(self, config: TransformerConfig) -> None:
        self.epsilon = config.eps
        self.attn = JointAttention(
            config.width, config.num_attention_heads, config.eps, use_bias=False
        )
        self.ff = FeedForward(config)
        self.ff_context = FeedForward(config)

    def __call__(
        self,
        text: jax.Array,
        image: jax.Array,
        of_text: tuple[Modulated, ...],
        of_image: tuple[Modulated, ...],
        rotation: Rotation,
        mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Map the tokens of the text `[b, t, d]` and of the image `[b, n - t, d]`.

        Args:
            text: Of each row.
            image: Of each row.
            of_text: How the time changes the text's attention and feed-forward layer.
            of_image: The same of the image.
            rotation: For all tokens, those of the text first.
            mask: bool `[b, n]`: the tokens that others attend to. None: all.
        """
        inputs = (
            of_text[0].normalized(text, self.epsilon),
            of_image[0].normalized(image, self.epsilon),
        )
        from_text, from_image = self.attn(*inputs, rotation, mask)
        text += of_text[0].gate * from_text
        image += of_image[0].gate * from_image
        image += of_image[1].gate * self.ff(of_image[1].normalized(image, self.epsilon))
        text += of_text[1].gate * self.ff_context(of_text[1].normalized(text, self.epsilon))
        return in_rows(text), in_rows(image)


class ParallelAttention(nnx.Module):
    """It is diffusers' Flux2ParallelSelfAttention: one product has the inputs of attention and of
    the feed-forward layer, another one takes their outputs."""

    def __init__(self, config: TransformerConfig) -> None:
        width, inner = config.width, config.inner_width
        self.config = config
        self.to_qkv_mlp_proj = linear(width, 3 * width + 2 * inner, use_bias=False)
        self.norm_q = RmsNorm(config.attention_head_dim, config.eps)
        self.norm_k = RmsNorm(config.attention_head_dim, config.eps)
        self.to_out = linear(width + inner, width, use_bias=False)

    def __call__(self, x: jax.Array, rotation: Rotation, mask: jax.Array | None) -> jax.Array:
        config = self.config
        ends = [*(n * config.width for n in (1, 2, 3)), 3 * config.width + config.inner_width]
        q, k, v, gate, value = project_parts(self.to_qkv_mlp_proj, x, ends)
        heads = config.num_attention_heads
        q = place_heads(q, self.norm_q, rotation, heads=heads)
        k = place_heads(k, self.norm_k, rotation, heads=heads)
        attended = attention(q, k, v, heads=heads, mask=mask)
        return project_joined(self.to_out, attended, jax.nn.silu(gate) * value)


class SingleBlock(nnx.Module):
    """It is diffusers' Flux2SingleTransformerBlock."""

    def __init__(self, config: TransformerConfig) -> None:
        self.epsilon = config.eps
        self.attn = ParallelAttention(config)

    def __call__(
        self,
        x: jax.Array,
        modulated: Modulated,
        rotation: Rotation,
        mask: jax.Array | None = None,
    ) -> jax.Array:
        """Map the tokens of the text and of the image after it, `[b, n, d]`."""
        hidden = self.attn(modulated.normalized(x, self.epsilon), rotation, mask)
        return in_rows(x + modulated.gate * hidden)
