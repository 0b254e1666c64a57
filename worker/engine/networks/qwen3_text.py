"""Define the text encoder Qwen3 (Yang et al. 2025), as the pipelines of transformers read it.

Input: token ids. Output: hidden states of every token, after the
layers that a family reads. Later layers are neither loaded nor computed. This module does not
tokenize (see `worker.engine.tokenizers.qwen`).

Axes: b prompts, n tokens, h heads, g heads of keys and values, d width of a head, c hidden width.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from imagefleet.worker.engine.checkpoint.config_reader import SILU_NAMES, ConfigReader, Json
from imagefleet.worker.engine.checkpoint.weights import WeightNames
from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.networks.blocks import RmsNorm, embedding, linear
from imagefleet.worker.engine.networks.rotary import Rotation, rotate_halves

_DEFAULT_THETA: Final = 10_000.0
"""transformers takes this base of the angles if a config has none."""


@dataclass(frozen=True, kw_only=True)
class Qwen3Config:
    """It is `text_encoder/config.json`, with the hidden states that a family reads."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    attention_bias: bool
    states: tuple[int, ...]
    """These hidden states are read: 0 are the embeddings, k the output of the k-th layer. That of
    the last layer is normalised."""

    @classmethod
    def from_json(cls, config: Json, states: Sequence[int]) -> Self:
        """Read the config.

        Args:
            config: The parsed JSON.
            states: Indexes of transformers' `hidden_states`. Negative ones count from the end.

        Raises:
            CheckpointError: Fields are missing or unsupported, or there are too few layers.
        """
        fields = ConfigReader("text_encoder/config.json", config)
        fields.choice("model_type", "qwen3", ("qwen3",))
        fields.require(
            transformers_weights=None, quantization_config=None, configuration_files=None
        )
        fields.choice("hidden_act", "silu", SILU_NAMES)
        layers, heads = (
            fields.count("num_hidden_layers", 32),
            fields.count("num_attention_heads", 32),
        )
        _require_full_attention(fields, layers)
        fields.ignore(
            *("architectures", "attention_dropout", "initializer_range", "dtype", "torch_dtype"),
            *("bos_token_id", "eos_token_id", "pad_token_id", "transformers_version", "use_cache"),
            *("tie_word_embeddings", "max_window_layers", "sliding_window", "_attn_implementation"),
        )
        checked = cls(
            vocab_size=fields.count("vocab_size", 151_936),
            hidden_size=fields.count("hidden_size", 4096),
            intermediate_size=fields.count("intermediate_size", 22_016),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=_key_value_heads(fields, heads),
            head_dim=_head_dim(fields),
            max_position_embeddings=fields.count("max_position_embeddings", 32_768),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6, above=0),
            rope_theta=_theta(fields),
            attention_bias=fields.flag("attention_bias", False),
            states=_states(fields, states, layers),
        )
        fields.finish()
        return checked

    @property
    def computed_layers(self) -> int:
        """Return the number of layers that are needed for the states."""
        return max(self.states)

    @property
    def reads_last_state(self) -> bool:
        """Return whether the normalised output of the last layer is read."""
        return self.num_hidden_layers in self.states


def _require_full_attention(fields: ConfigReader, layers: int) -> None:
    """Add an error if some layers attend to a window of tokens only."""
    fields.require(use_sliding_window=False)
    kinds = fields.get("layer_types", None)
    if kinds is not None and list(kinds) != ["full_attention"] * layers:
        fields.add_error(f"layer_types must be {layers} times 'full_attention', or be missing")


def _key_value_heads(fields: ConfigReader, heads: int) -> int:
    """Return the heads of keys and values. As in transformers, null means as many as of queries."""
    if fields.get("num_key_value_heads", 32) is None:
        return heads
    return fields.divisor("num_key_value_heads", 32, of=(heads,))


def _head_dim(fields: ConfigReader) -> int:
    width = fields.count("head_dim", 128)
    if width % 2:
        fields.add_error(f"head_dim={width} must be even, since pairs of numbers are rotated")
    return width


def _theta(fields: ConfigReader) -> float:
    """Return the base of the angles, which older files have beside `rope_scaling`."""
    theta = fields.number("rope_theta", _DEFAULT_THETA, above=0)
    given: Any = fields.get("rope_scaling", None) or fields.get("rope_parameters", None) or {}
    if not isinstance(given, dict):
        fields.add_error(f"rope_parameters={given!r} is not an object")
        return theta
    inner = ConfigReader("rope_parameters", given)
    kind = inner.get("rope_type", inner.get("type", "default"))
    fields.require_one_of("rope_type", kind, ("default",))
    theta = inner.get("rope_theta", theta)
    if unknown := given.keys() - {"rope_type", "type", "rope_theta"}:
        fields.add_error(f"rope_parameters has the unknown field {min(unknown)!r}")
    if not isinstance(theta, int | float) or isinstance(theta, bool) or theta <= 0:
        fields.add_error(f"rope_theta={theta!r} is not a number above 0")
        return _DEFAULT_THETA
    return float(theta)


def _states(fields: ConfigReader, states: Sequence[int], layers: int) -> tuple[int, ...]:
    """Return the indexes of states counted from the embeddings."""
    counted = tuple(state if state >= 0 else layers + 1 + state for state in states)
    if not 0 <= min(counted) <= max(counted) <= layers:
        fields.add_error(
            f"num_hidden_layers={layers} is too small: the pipeline reads the hidden states "
            f"{', '.join(map(str, states))}"
        )
        return (layers,)
    return counted


class Qwen3Attention(nnx.Module):
    """It is transformers' Qwen3Attention: several heads of queries share keys and values
    (Ainslie et al. 2023), and queries and keys are normalised."""

    def __init__(self, config: Qwen3Config) -> None:
        width, bias, self.head_dim = config.hidden_size, config.attention_bias, config.head_dim
        self.heads, self.shared_heads = config.num_attention_heads, config.num_key_value_heads
        queries, keys = self.heads * self.head_dim, self.shared_heads * self.head_dim
        self.q_proj = linear(width, queries, use_bias=bias)
        self.k_proj = linear(width, keys, use_bias=bias)
        self.v_proj = linear(width, keys, use_bias=bias)
        self.o_proj = linear(queries, width, use_bias=bias)
        self.q_norm = RmsNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RmsNorm(self.head_dim, config.rms_norm_eps)

    def __call__(self, x: jax.Array, rotation: Rotation, mask: jax.Array) -> jax.Array:
        batch, length, _ = x.shape
        q, k, v = (
            project(x).reshape(batch, length, -1, self.head_dim)  # [b, n, h or g, d]
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate_halves(self.q_norm(q), rotation), rotate_halves(self.k_norm(k), rotation)
        k, v = (jnp.repeat(each, self.heads // self.shared_heads, axis=2) for each in (k, v))
        q, k, v = (each.reshape(batch, length, -1) for each in (q, k, v))
        return self.o_proj(attention(q, k, v, heads=self.heads, causal=True, mask=mask))


class Qwen3Mlp(nnx.Module):
    """It is transformers' Qwen3MLP, which is gated (Shazeer 2020)."""

    def __init__(self, config: Qwen3Config) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = linear(width, inner, use_bias=False)
        self.up_proj = linear(width, inner, use_bias=False)
        self.down_proj = linear(inner, width, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Qwen3Layer(nnx.Module):
    """It is transformers' Qwen3DecoderLayer, which normalises before attention and MLP."""

    def __init__(self, config: Qwen3Config) -> None:
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Qwen3Attention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Qwen3Mlp(config)

    def __call__(self, x: jax.Array, rotation: Rotation, mask: jax.Array) -> jax.Array:
        """Map `[b, n, c]` to `[b, n, c]`."""
        x += self.self_attn(self.input_layernorm(x), rotation, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen3Text(nnx.Module):
    """It is the part of transformers' Qwen3Model and Qwen3ForCausalLM that a family reads."""

    def __init__(self, config: Qwen3Config) -> None:
        self.config = config
        self.embed_tokens = embedding(config.vocab_size, config.hidden_size)
        self.layers = nnx.List(Qwen3Layer(config) for _ in range(config.computed_layers))
        has_norm = config.reads_last_state
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps) if has_norm else None

    @property
    def weight_names(self) -> WeightNames:
        """Return the names of the weights. Files have the layers that are not computed, too."""
        config = self.config
        later = "|".join(map(str, range(config.computed_layers, config.num_hidden_layers)))
        unread = [r"lm_head\.weight", *([] if config.reads_last_state else [r"norm\.weight"])]
        if later:
            unread.append(rf"layers\.({later})\..+")
        return WeightNames(from_old=((r"^model\.", ""),), unread=re.compile("|".join(unread)))

    def __call__(self, ids: jax.Array) -> tuple[jax.Array, ...]:
        """Encode prompts.

        Args:
            ids: int32 `[b, n]`. A token that pads has the complement of its id, a negative number:
                nothing attends to it.

        Returns:
            The hidden states `[b, n, c]` that `config.states` lists.
        """
        config, mask = self.config, ids >= 0
        x = self.embed_tokens(jnp.where(mask, ids, ~ids))
        rotation = _rotation(config, ids.shape[1])
        outputs = {0: x}
        for number, layer in enumerate(self.layers, 1):
            outputs[number] = x = layer(x, rotation, mask)
        if self.norm is not None:
            outputs[config.num_hidden_layers] = self.norm(x)
        return tuple(outputs[state] for state in config.states)


def _rotation(config: Qwen3Config, length: int) -> Rotation:
    """Return the rotations at the positions 0 to `length - 1`."""
    places = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequencies = (1 / np.float32(config.rope_theta) ** places).astype(np.float32)
    positions = np.arange(length, dtype=np.float32)
    return Rotation.of_angles(np.outer(positions, frequencies).astype(np.float32))
