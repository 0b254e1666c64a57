"""Define the blocks of FLUX.1's transformer (Black Forest Labs 2024), as in diffusers.

In a double block, text and image have weights of their own and attend to each other. In a single
block they are one sequence, and attention runs beside the feed-forward layer (Dehghani et al.
2023, section 2.1).

Axes: b rows, n tokens, t of them those of the text, d width of the transformer.
"""

import jax
from flax import nnx

from imagefleet.worker.engine.families.flux1.transformer_config import EPSILON, TransformerConfig
from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.networks.blocks import RmsNorm, linear
from imagefleet.worker.engine.networks.column_parts import project_joined
from imagefleet.worker.engine.networks.gelu_mlp import GeluMlp, tanh_gelu
from imagefleet.worker.engine.networks.joint_attention import JointAttention
from imagefleet.worker.engine.networks.modulation import Modulation
from imagefleet.worker.engine.networks.rotary import Rotation, place_heads
from imagefleet.worker.engine.networks.token_rows import in_rows


class DoubleBlock(nnx.Module):
    """It is diffusers' FluxTransformerBlock."""

    def __init__(self, config: TransformerConfig) -> None:
        self.norm1 = Modulation(config.width, 2, use_bias=True)
        self.norm1_context = Modulation(config.width, 2, use_bias=True)
        self.attn = JointAttention(config.width, config.num_attention_heads, EPSILON, use_bias=True)
        self.ff = GeluMlp(config.width, config.inner_width)
        self.ff_context = GeluMlp(config.width, config.inner_width)

    def __call__(
        self,
        text: jax.Array,
        image: jax.Array,
        time: jax.Array,
        rotation: Rotation,
        mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Map the tokens of the text `[b, t, d]` and of the image `[b, n - t, d]`.

        Args:
            text: Of each row.
            image: Of each row.
            time: The embedded times `[b, d]`.
            rotation: For all tokens, those of the text first.
            mask: bool `[b, n]`: the tokens that are attended to. None: all.
        """
        of_image, of_text = self.norm1(time), self.norm1_context(time)
        inputs = of_text[0].normalized(text, EPSILON), of_image[0].normalized(image, EPSILON)
        from_text, from_image = self.attn(*inputs, rotation, mask)
        text += of_text[0].gate * from_text
        image += of_image[0].gate * from_image
        image += of_image[1].gate * self.ff(of_image[1].normalized(image, EPSILON))
        text += of_text[1].gate * self.ff_context(of_text[1].normalized(text, EPSILON))
        return in_rows(text), in_rows(image)


class SelfAttention(nnx.Module):
    """It is the FluxAttention of diffusers' single blocks, which has no layer after it."""

    def __init__(self, config: TransformerConfig) -> None:
        self.heads = config.num_attention_heads
        self.to_q = linear(config.width, config.width)
        self.to_k = linear(config.width, config.width)
        self.to_v = linear(config.width, config.width)
        self.norm_q = RmsNorm(config.attention_head_dim, EPSILON)
        self.norm_k = RmsNorm(config.attention_head_dim, EPSILON)

    def __call__(self, x: jax.Array, rotation: Rotation, mask: jax.Array | None) -> jax.Array:
        q = place_heads(self.to_q(x), self.norm_q, rotation, heads=self.heads)
        k = place_heads(self.to_k(x), self.norm_k, rotation, heads=self.heads)
        return attention(q, k, self.to_v(x), heads=self.heads, mask=mask)


class SingleBlock(nnx.Module):
    """It is diffusers' FluxSingleTransformerBlock."""

    def __init__(self, config: TransformerConfig) -> None:
        self.norm = Modulation(config.width, 1, use_bias=True)
        self.attn = SelfAttention(config)
        self.proj_mlp = linear(config.width, config.inner_width)
        self.proj_out = linear(config.width + config.inner_width, config.width)

    def __call__(
        self, x: jax.Array, time: jax.Array, rotation: Rotation, mask: jax.Array | None = None
    ) -> jax.Array:
        """Map the tokens of the text and of the image after it, `[b, n, d]`. See `DoubleBlock`."""
        (modulated,) = self.norm(time)
        inputs = modulated.normalized(x, EPSILON)
        hidden = self.attn(inputs, rotation, mask), tanh_gelu(self.proj_mlp(inputs))
        return in_rows(x + modulated.gate * project_joined(self.proj_out, *hidden))
