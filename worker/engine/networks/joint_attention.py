"""Let the tokens of a text and of an image attend to each other (Esser et al. 2024, section 4).

Input: tokens and the rotations by their positions, if there are any. Output: what they attended to.

Axes: b rows, n tokens, d width of the transformer.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.networks.blocks import RmsNorm, linear
from imagefleet.worker.engine.networks.column_parts import project_joined
from imagefleet.worker.engine.networks.rotary import Rotation, place_heads


class JointAttention(nnx.Module):
    """It is the FluxAttention and the Flux2Attention of diffusers' double blocks, and the Attention
    of its joint blocks: text and image have projections of their own."""

    def __init__(
        self,
        width: int,
        heads: int,
        epsilon: float,
        *,
        use_bias: bool,
        has_norms: bool = True,
        returns_text: bool = True,
    ) -> None:
        """
        Args:
            width: Of the transformer.
            heads: Their number.
            epsilon: Of the norms.
            use_bias: Whether the projections have biases.
            has_norms: Whether the heads of queries and keys are normalised.
            returns_text: Whether there is an output for the text. It is not read after the last
                block of a transformer.
        """
        head_dim, self.heads = width // heads, heads
        self.to_q = linear(width, width, use_bias=use_bias)
        self.to_k = linear(width, width, use_bias=use_bias)
        self.to_v = linear(width, width, use_bias=use_bias)
        self.to_out = linear(width, width, use_bias=use_bias)
        self.norm_q = RmsNorm(head_dim, epsilon) if has_norms else None
        self.norm_k = RmsNorm(head_dim, epsilon) if has_norms else None
        self.add_q_proj = linear(width, width, use_bias=use_bias)
        self.add_k_proj = linear(width, width, use_bias=use_bias)
        self.add_v_proj = linear(width, width, use_bias=use_bias)
        self.to_add_out = linear(width, width, use_bias=use_bias) if returns_text else None
        self.norm_added_q = RmsNorm(head_dim, epsilon) if has_norms else None
        self.norm_added_k = RmsNorm(head_dim, epsilon) if has_norms else None

    def __call__(
        self,
        text: jax.Array,
        image: jax.Array,
        rotation: Rotation | None = None,
        mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Return the outputs for the text and for the image. Without an output for the text, the
        text has none of the last projection."""
        heads, tokens = self.heads, text.shape[1]
        of_text, of_image = (
            partial(place_heads, rotation=rotation and rotation.of_tokens(part), heads=heads)
            for part in (slice(tokens), slice(tokens, None))
        )
        queries = (
            of_text(self.add_q_proj(text), self.norm_added_q),
            of_image(self.to_q(image), self.norm_q),
        )
        keys = (
            of_text(self.add_k_proj(text), self.norm_added_k),
            of_image(self.to_k(image), self.norm_k),
        )
        values = self.add_v_proj(text), self.to_v(image)
        q, k, v = (jnp.concatenate(pair, axis=1) for pair in (queries, keys, values))
        hidden = attention(q, k, v, heads=heads, mask=mask)
        from_text, from_image = hidden[:, :tokens], hidden[:, tokens:]
        if self.to_add_out is not None:
            from_text = project_joined(self.to_add_out, from_text)
        return from_text, project_joined(self.to_out, from_image)
