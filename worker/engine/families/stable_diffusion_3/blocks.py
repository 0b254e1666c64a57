"""Define the blocks of Stable Diffusion 3's transformer (Esser et al. 2024), as in diffusers.

Text and image have weights of their own and attend to each other.

Axes: b rows, n tokens of an image, t tokens of a text, d width of the transformer.
"""

import jax
from flax import nnx

from imagefleet.worker.engine.families.stable_diffusion_3.transformer_config import (
    EPSILON,
    TransformerConfig,
)
from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.networks.blocks import RmsNorm, linear
from imagefleet.worker.engine.networks.gelu_mlp import GeluMlp
from imagefleet.worker.engine.networks.joint_attention import JointAttention
from imagefleet.worker.engine.networks.modulation import FinalNorm, Modulation
from imagefleet.worker.engine.networks.rotary import place_heads
from imagefleet.worker.engine.networks.token_rows import in_rows


class SelfAttention(nnx.Module):
    """It is the second Attention of diffusers' joint blocks, in which the image attends to
    itself."""

    def __init__(self, config: TransformerConfig) -> None:
        width, self.heads = config.width, config.num_attention_heads
        self.to_q = linear(width, width)
        self.to_k = linear(width, width)
        self.to_v = linear(width, width)
        self.to_out = linear(width, width)
        head_dim = config.attention_head_dim
        self.norm_q = RmsNorm(head_dim, EPSILON) if config.has_norms else None
        self.norm_k = RmsNorm(head_dim, EPSILON) if config.has_norms else None

    def __call__(self, x: jax.Array) -> jax.Array:
        q = place_heads(self.to_q(x), self.norm_q, None, heads=self.heads)
        k = place_heads(self.to_k(x), self.norm_k, None, heads=self.heads)
        return self.to_out(attention(q, k, self.to_v(x), heads=self.heads))


class JointBlock(nnx.Module):
    """It is diffusers' JointTransformerBlock. The last one makes no text."""

    def __init__(self, config: TransformerConfig, number: int) -> None:
        width, is_last = config.width, number == config.num_layers - 1
        is_dual = number in config.dual_attention_layers
        self.norm1 = Modulation(width, 3 if is_dual else 2, use_bias=True)
        self.norm1_context = (
            FinalNorm(width, EPSILON, use_bias=True)
            if is_last
            else Modulation(width, 2, use_bias=True)
        )
        self.attn = JointAttention(
            width,
            config.num_attention_heads,
            EPSILON,
            use_bias=True,
            has_norms=config.has_norms,
            returns_text=not is_last,
        )
        self.attn2 = SelfAttention(config) if is_dual else None
        self.ff = GeluMlp(width, config.inner_width)
        self.ff_context = None if is_last else GeluMlp(width, config.inner_width)

    def __call__(
        self, text: jax.Array, image: jax.Array, time: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Map the tokens of the text `[b, t, d]` and of the image `[b, n, d]`.

        Args:
            text: Of each row. The last block returns it as it is.
            image: Of each row.
            time: The embedded times `[b, d]`.
        """
        joint, mlp, *alone = self.norm1(time)
        image_input = joint.normalized(image, EPSILON)
        if isinstance(self.norm1_context, FinalNorm):
            _, from_image = self.attn(self.norm1_context(text, time), image_input)
        else:
            text_joint, text_mlp = self.norm1_context(time)
            from_text, from_image = self.attn(text_joint.normalized(text, EPSILON), image_input)
            text += text_joint.gate * from_text
        attended = joint.gate * from_image
        if self.attn2 is not None:
            attended += alone[0].gate * self.attn2(alone[0].normalized(image, EPSILON))
        image += attended
        image += mlp.gate * self.ff(mlp.normalized(image, EPSILON))
        if self.ff_context is not None:
            text += text_mlp.gate * self.ff_context(text_mlp.normalized(text, EPSILON))
        return in_rows(text), in_rows(image)
