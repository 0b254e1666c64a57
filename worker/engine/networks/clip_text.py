"""Define CLIP's text encoder (Radford et al. 2021), as Stable Diffusion and FLUX.1 use it.

Input: token ids. Output: the hidden states of every token and the pooled state of the prompt. This
module does not tokenize (see `worker.engine.tokenizers.clip`) and does not choose the states that
a denoiser reads (see the prompt encoder of its family).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader, Json
from imagefleet.worker.engine.checkpoint.weights import WeightNames
from imagefleet.worker.engine.networks.blocks import LayerNorm, embedding, linear
from imagefleet.worker.engine.networks.clip_layer import ACTIVATIONS, EncoderLayer

_LEGACY_EOS_TOKEN_ID: Final = 2
"""Configs older than transformers 4.31 have this `eos_token_id`. It is wrong: in those models the
end token is the one with the highest id."""


@dataclass(frozen=True, kw_only=True)
class ClipTextConfig:
    """It is `text_encoder/config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    hidden_act: str
    layer_norm_eps: float
    eos_token_id: int
    projection_dim: int
    """It is the width of the pooled state."""
    is_projected: bool
    """Whether the encoder has a projection, and so a pooled state."""

    @classmethod
    def from_json(
        cls, config: Json, file: str = "text_encoder/config.json", *, is_projected: bool = False
    ) -> Self:
        """Read the config.

        Args:
            config: The parsed JSON.
            file: The name of the file in errors.
            is_projected: Whether model_index.json has the class with a projection. As in diffusers,
                `architectures` in this config has no effect.

        Raises:
            CheckpointError: Fields are missing or unsupported.
        """
        fields = ConfigReader(file, config)
        fields.choice("model_type", "clip_text_model", ("clip_text_model",))
        fields.require(
            use_attention_mask=False,
            transformers_weights=None,
            quantization_config=None,
            configuration_files=None,
        )
        hidden = fields.count("hidden_size", 512)
        fields.ignore(
            "architectures",
            *("attention_dropout", "dropout", "initializer_factor", "initializer_range", "dtype"),
            *("torch_dtype", "bos_token_id", "pad_token_id", "transformers_version"),
        )
        checked = cls(
            vocab_size=fields.count("vocab_size", 49408),
            hidden_size=hidden,
            intermediate_size=fields.count("intermediate_size", 2048),
            num_hidden_layers=fields.count("num_hidden_layers", 12),
            num_attention_heads=fields.divisor("num_attention_heads", 8, of=(hidden,)),
            max_position_embeddings=fields.count("max_position_embeddings", 77),
            hidden_act=fields.choice("hidden_act", "quick_gelu", tuple(ACTIVATIONS)),
            layer_norm_eps=fields.number("layer_norm_eps", 1e-5, above=0),
            eos_token_id=fields.count("eos_token_id", 49407, minimum=0),
            projection_dim=fields.count("projection_dim", 512),
            is_projected=is_projected,
        )
        fields.finish()
        return checked


class TextStates(NamedTuple):
    """It is the encoder's output for tokens `[b, n]`."""

    hidden_states: tuple[jax.Array, ...]
    """They are `[b, n, hidden_size]` each: the embeddings, then the output of each layer. None of
    them is normalised: call `final_layer_norm` where that is needed."""
    pooled: jax.Array | None
    """It is `[b, projection_dim]`: the projected last hidden state of the first end token. It is
    None if the encoder has no projection."""


class ClipText(nnx.Module):
    """It is both CLIPTextModel and CLIPTextModelWithProjection of transformers."""

    weight_names: ClassVar = WeightNames(
        to_checkpoint=(
            (r"^(token|position)_embedding\b", r"embeddings.\1_embedding"),
            (r"^layers\b", "encoder.layers"),
        ),
        from_old=((r"^text_model\.", ""),),
        buffers=frozenset({"embeddings.position_ids"}),  # 0, 1, 2 …: only older files hold it
    )

    def __init__(self, config: ClipTextConfig) -> None:
        width = config.hidden_size
        self.config = config
        self.token_embedding = embedding(config.vocab_size, width)
        self.position_embedding = embedding(config.max_position_embeddings, width)
        self.layers = nnx.List(
            EncoderLayer(config, causal=True) for _ in range(config.num_hidden_layers)
        )
        self.final_layer_norm = LayerNorm(width, config.layer_norm_eps)
        self.text_projection = (
            linear(width, config.projection_dim, use_bias=False) if config.is_projected else None
        )

    def __call__(self, tokens: jax.Array) -> TextStates:
        """Encode `tokens [b, n]`, int32."""
        x = self.token_embedding(tokens)
        x += self.position_embedding(jnp.arange(tokens.shape[1]))
        hidden_states = [x]
        for layer in self.layers:
            hidden_states.append(layer(hidden_states[-1]))
        pooled = None
        if self.text_projection is not None:
            pooled = self.text_projection(self._end_state(tokens, hidden_states[-1]))
        return TextStates(tuple(hidden_states), pooled)

    def end_state(self, tokens: jax.Array) -> jax.Array:
        """Return the normalised last state of the first end token, `[b, hidden_size]`: the pooled
        state of an encoder without a projection."""
        return self._end_state(tokens, self(tokens).hidden_states[-1])

    def _end_state(self, tokens: jax.Array, states: jax.Array) -> jax.Array:
        index = self._end_position(tokens)[:, None, None]
        return jnp.take_along_axis(self.final_layer_norm(states), index, axis=1)[:, 0]

    def _end_position(self, tokens: jax.Array) -> jax.Array:
        """Return the position of the first end token, int32 `[b]`."""
        end = self.config.eos_token_id
        return jnp.argmax(tokens if end == _LEGACY_EOS_TOKEN_ID else tokens == end, axis=1)


def skip_layers(hidden_states: Sequence[jax.Array], skip: jax.Array) -> jax.Array:
    """Return for each row, `[b, n, c]`, the hidden states that lie `skip [b]` before the last.

    Selecting layer by layer needs no memory for all of them.
    """
    chosen, *later = hidden_states
    for left, states in zip(reversed(range(len(later))), later, strict=True):
        chosen = jnp.where((skip <= left)[:, None, None], states, chosen)
    return chosen
