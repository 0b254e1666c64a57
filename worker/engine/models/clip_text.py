"""CLIP's text encoder (Radford et al. 2021): Stable Diffusion 1.x's, 2.x's and both of SDXL's.

Goes in: token ids. Comes out: hidden states of every token, and the prompt's as a whole. Knows no
text: the tokenizer is `worker.engine.tokenizer`. Which states a UNet reads is said in
`worker.engine.prompts`.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.models.blocks import embedding, layer_norm, linear
from imagefleet.worker.engine.models.clip import ACTIVATIONS, EncoderLayer
from imagefleet.worker.engine.models.config import ConfigReader, Json

_PLAIN: Final = ["CLIPTextModel"]
_PROJECTING: Final = ["CLIPTextModelWithProjection"]
_HIGHEST: Final = 2
"""The `eos_token_id` of configs older than transformers 4.31. It is wrong, and means: the end is
the token with the highest id."""


@dataclass(frozen=True, kw_only=True)
class ClipTextConfig:
    """`text_encoder/config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    hidden_act: str
    layer_norm_eps: float
    eos_token_id: int
    projection_dim: int | None
    """Width of the pooled state; None: the encoder has no projection."""

    @classmethod
    def from_json(cls, config: Json) -> Self:
        """
        Raises:
            CheckpointError: fields that are missing or ask for another network.
        """
        fields = ConfigReader("text encoder", config)
        fields.choice("model_type", "clip_text_model", ("clip_text_model",))
        kind = fields.choice("architectures", _PLAIN, (_PLAIN, _PROJECTING))
        width, hidden = fields.count("projection_dim", 512), fields.count("hidden_size", 512)
        fields.ignored(
            *("attention_dropout", "dropout", "initializer_factor", "initializer_range", "dtype"),
            *("torch_dtype", "bos_token_id", "pad_token_id", "transformers_version"),
        )
        read = cls(
            vocab_size=fields.count("vocab_size", 49408),
            hidden_size=hidden,
            intermediate_size=fields.count("intermediate_size", 2048),
            num_hidden_layers=fields.count("num_hidden_layers", 12),
            num_attention_heads=fields.divisor("num_attention_heads", 8, of=(hidden,)),
            max_position_embeddings=fields.count("max_position_embeddings", 77),
            hidden_act=fields.choice("hidden_act", "quick_gelu", tuple(ACTIVATIONS)),
            layer_norm_eps=fields.number("layer_norm_eps", 1e-5, above=0),
            eos_token_id=fields.count("eos_token_id", 49407, least=0),
            projection_dim=width if kind == _PROJECTING else None,
        )
        fields.finish()
        return read


class TextStates(NamedTuple):
    """What the encoder makes of tokens `[b, n]`."""

    last: jax.Array
    """`[b, n, hidden_size]`, after the final norm."""
    penultimate: jax.Array
    """`[b, n, hidden_size]`, before the last layer, not normed."""
    end: jax.Array
    """int32 `[b]`: where the first end token stands. At 1 there are no words."""
    pooled: jax.Array | None
    """`[b, projection_dim]`: the last state of that token, projected."""


class ClipText(nnx.Module):
    """CLIPTextModel and CLIPTextModelWithProjection."""

    def __init__(self, config: ClipTextConfig) -> None:
        width, projected = config.hidden_size, config.projection_dim
        self.config = config
        self.token_embedding = embedding(config.vocab_size, width)
        self.position_embedding = embedding(config.max_position_embeddings, width)
        self.layers = nnx.List(
            EncoderLayer(config, causal=True) for _ in range(config.num_hidden_layers)
        )
        self.final_layer_norm = layer_norm(width, config.layer_norm_eps)
        self.text_projection = linear(width, projected, use_bias=False) if projected else None

    def __call__(self, tokens: jax.Array) -> TextStates:
        """`tokens [b, n]`, int32."""
        x = self.token_embedding(tokens)
        x += self.position_embedding(jnp.arange(tokens.shape[1]))
        penultimate = x
        for layer in self.layers:
            penultimate, x = x, layer(x)
        last, end = self.final_layer_norm(x), self._end(tokens)
        pooled = None
        if self.text_projection is not None:
            of_end = jnp.take_along_axis(last, end[:, None, None], axis=1)[:, 0]  # [b, hidden]
            pooled = self.text_projection(of_end)
        return TextStates(last, penultimate, end, pooled)

    def _end(self, tokens: jax.Array) -> jax.Array:
        end = self.config.eos_token_id
        return jnp.argmax(tokens if end == _HIGHEST else tokens == end, axis=1)
