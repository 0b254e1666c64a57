"""Let the tokens of a text and of an image attend to each other (Esser et al. 2024, section 4).

Input: tokens and the rotations by their positions. Output: what they attended to.

Axes: b rows, n tokens, d width of the transformer.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.networks.blocks import RmsNorm, linear
from imagefleet.worker.engine.networks.rotary import Rotation, place_heads


class JointAttention(nnx.Module):
    """It is the FluxAttention and the Flux2Attention of diffusers' double blocks: text and image
    have projections of their own."""

    def __init__(self, width: int, heads: int, epsilon: float, *, use_bias: bool) -> None:
        head_dim, self.heads = width // heads, heads
        self.to_q = linear(width, width, use_bias=use_bias)
        self.to_k = linear(width, width, use_bias=use_bias)
        self.to_v = linear(width, width, use_bias=use_bias)
        self.to_out = linear(width, width, use_bias=use_bias)
        self.norm_q = RmsNorm(head_dim, epsilon)
        self.norm_k = RmsNorm(head_dim, epsilon)
        self.add_q_proj = linear(width, width, use_bias=use_bias)
        self.add_k_proj = linear(width, width, use_bias=use_bias)
        self.add_v_proj = linear(width, width, use_bias=use_bias)
        self.to_add_out = linear(width, width, use_bias=use_bias)
        self.norm_added_q = RmsNorm(head_dim, epsilon)
        self.norm_added_k = RmsNorm(head_dim, epsilon)

    def __call__(
        self, text: jax.Array, image: jax.Array, rotation: Rotation, mask: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Return the outputs for the text and for the image."""
        heads, tokens = self.heads, text.shape[1]
        of_text, of_image = (
            partial(place_heads, rotation=rotation.of_tokens(part), heads=heads)
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
        return self.to_add_out(hidden[:, :tokens]), self.to_out(hidden[:, tokens:])
