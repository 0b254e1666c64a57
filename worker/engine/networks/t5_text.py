"""Define the encoder of T5 (Raffel et al. 2020), as the pipelines of transformers read it.

Input: token ids. Output: the normalised state of every token. Nothing is masked: tokens that pad a
prompt are read too, as in diffusers. This module does not tokenize (see
`worker.engine.tokenizers.t5`).

Axes: b prompts, n tokens, h heads, d width of a head, c hidden width.
"""

import math
import re
from dataclasses import dataclass
from typing import ClassVar, Final, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader, Json
from imagefleet.worker.engine.checkpoint.weights import WeightNames
from imagefleet.worker.engine.networks.blocks import RmsNorm, embedding, linear

_FLOAT32_SUMS: Final = {"preferred_element_type": jnp.float32}


@dataclass(frozen=True, kw_only=True)
class T5Config:
    """It is the `config.json` of the encoder."""

    vocab_size: int
    d_model: int
    d_kv: int
    """It is the width of a head."""
    d_ff: int
    num_layers: int
    num_heads: int
    relative_attention_num_buckets: int
    """Distances between tokens are counted in so many classes."""
    relative_attention_max_distance: int
    """All distances of this many tokens or more are one class, in each direction."""
    layer_norm_epsilon: float

    @classmethod
    def from_json(cls, config: Json, file: str) -> Self:
        """Read the config.

        Args:
            config: The parsed JSON.
            file: The name of the file in errors.

        Raises:
            CheckpointError: Fields are missing or unsupported.
        """
        fields = ConfigReader(file, config)
        fields.choice("model_type", "t5", ("t5",))
        fields.choice("feed_forward_proj", "relu", ("gated-gelu",))
        fields.require(
            is_gated_act=True,
            dense_act_fn="gelu_new",
            is_decoder=False,
            transformers_weights=None,
            quantization_config=None,
            configuration_files=None,
        )
        fields.ignore(
            *("architectures", "classifier_dropout", "decoder_start_token_id", "dropout_rate"),
            *("eos_token_id", "initializer_factor", "is_encoder_decoder", "num_decoder_layers"),
            *("output_past", "pad_token_id", "tie_word_embeddings", "use_cache", "dtype"),
            *("torch_dtype", "transformers_version", "n_positions", "task_specific_params"),
            "scale_decoder_outputs",
        )
        checked = cls(
            vocab_size=fields.count("vocab_size", 32_128),
            d_model=fields.count("d_model", 512),
            d_kv=fields.count("d_kv", 64),
            d_ff=fields.count("d_ff", 2048),
            num_layers=fields.count("num_layers", 6),
            num_heads=fields.count("num_heads", 8),
            relative_attention_num_buckets=_buckets(fields),
            relative_attention_max_distance=fields.count("relative_attention_max_distance", 128),
            layer_norm_epsilon=fields.number("layer_norm_epsilon", 1e-6, above=0),
        )
        if checked.relative_attention_max_distance <= checked.exact_distances:
            fields.add_error(
                f"relative_attention_max_distance={checked.relative_attention_max_distance} must "
                f"be above {checked.exact_distances}, a quarter of relative_attention_num_buckets"
            )
        fields.finish()
        return checked

    @property
    def exact_distances(self) -> int:
        """Return how many of the smallest distances have a class of their own, in each
        direction."""
        return self.relative_attention_num_buckets // 4

    @property
    def inner_width(self) -> int:
        """Return the width of queries, keys and values."""
        return self.num_heads * self.d_kv


def _buckets(fields: ConfigReader) -> int:
    count = fields.count("relative_attention_num_buckets", 32)
    if count % 4:
        fields.add_error(f"relative_attention_num_buckets={count} must be a multiple of 4")
        return 32
    return count


def distance_classes(config: T5Config, length: int) -> NDArray[np.int32]:
    """Return the class of each distance, from `1 - length` to `length - 1` tokens.

    They are transformers' `_relative_position_bucket`, in its precision.
    """
    distances = np.arange(1 - length, length)
    classes, exact = config.relative_attention_num_buckets // 2, config.exact_distances
    sizes = np.abs(distances)
    with np.errstate(divide="ignore"):
        logarithms = np.log(sizes.astype(np.float32) / np.float32(exact))
    span = np.float32(math.log(config.relative_attention_max_distance / exact))
    far = exact + np.nan_to_num(logarithms / span * (classes - exact), neginf=0).astype(np.int32)
    of_size = np.where(sizes < exact, sizes, np.minimum(far, classes - 1))
    return np.asarray(of_size + classes * (distances > 0), np.int32)


class T5Attention(nnx.Module):
    """It is transformers' T5Attention of an encoder. Scores are not divided by the root of the
    width of a head, and have a bias by the distance of the tokens. No kernel adds it."""

    def __init__(self, config: T5Config) -> None:
        width, inner, self.heads = config.d_model, config.inner_width, config.num_heads
        self.q = linear(width, inner, use_bias=False)
        self.k = linear(width, inner, use_bias=False)
        self.v = linear(width, inner, use_bias=False)
        self.o = linear(inner, width, use_bias=False)

    def __call__(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        """Attend with a bias float32 `[h, n, n]`, from the second last axis to the last one."""
        q, k, v = (
            each(x).reshape(*x.shape[:2], self.heads, -1) for each in (self.q, self.k, self.v)
        )
        scores = jnp.einsum("bnhd,bmhd->bhnm", q, k, **_FLOAT32_SUMS) + bias
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        attended = jnp.einsum("bhnm,bmhd->bnhd", weights, v, **_FLOAT32_SUMS).astype(v.dtype)
        return self.o(attended.reshape(*x.shape[:2], -1))


class T5Mlp(nnx.Module):
    """It is transformers' T5DenseGatedActDense (Shazeer 2020)."""

    def __init__(self, config: T5Config) -> None:
        width, inner = config.d_model, config.d_ff
        self.wi_0 = linear(width, inner, use_bias=False)
        self.wi_1 = linear(width, inner, use_bias=False)
        self.wo = linear(inner, width, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.wo(jax.nn.gelu(self.wi_0(x), approximate=True) * self.wi_1(x))


class T5Block(nnx.Module):
    """It is transformers' T5Block of an encoder, which normalises before attention and MLP."""

    def __init__(self, config: T5Config) -> None:
        self.attention_norm = RmsNorm(config.d_model, config.layer_norm_epsilon)
        self.attention = T5Attention(config)
        self.mlp_norm = RmsNorm(config.d_model, config.layer_norm_epsilon)
        self.mlp = T5Mlp(config)

    def __call__(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        """Map `[b, n, c]` to `[b, n, c]`."""
        x += self.attention(self.attention_norm(x), bias)
        return x + self.mlp(self.mlp_norm(x))


class T5Text(nnx.Module):
    """It is transformers' T5EncoderModel."""

    weight_names: ClassVar = WeightNames(
        to_checkpoint=(
            (r"^relative_bias\b", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"),
            (r"^blocks\.(\d+)\.attention\b", r"encoder.block.\1.layer.0.SelfAttention"),
            (r"^blocks\.(\d+)\.attention_norm\b", r"encoder.block.\1.layer.0.layer_norm"),
            (r"^blocks\.(\d+)\.mlp\b", r"encoder.block.\1.layer.1.DenseReluDense"),
            (r"^blocks\.(\d+)\.mlp_norm\b", r"encoder.block.\1.layer.1.layer_norm"),
            (r"^final_norm\b", "encoder.final_layer_norm"),
        ),
        # Files may have the embeddings twice, and the other half of the model.
        unread=re.compile(r"encoder\.embed_tokens\.weight|decoder\..+|lm_head\.weight"),
    )

    def __init__(self, config: T5Config) -> None:
        self.config = config
        self.shared = embedding(config.vocab_size, config.d_model)
        self.relative_bias = embedding(config.relative_attention_num_buckets, config.num_heads)
        self.blocks = nnx.List(T5Block(config) for _ in range(config.num_layers))
        self.final_norm = RmsNorm(config.d_model, config.layer_norm_epsilon)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Encode prompts, int32 `[b, n]`, as `[b, n, c]`."""
        x, bias = self.shared(ids), self._bias(ids.shape[1])
        for block in self.blocks:
            x = block(x, bias)
        return self.final_norm(x)

    def _bias(self, length: int) -> jax.Array:
        """Return what the distances of tokens add to scores, float32 `[h, n, n]`."""
        by_distance = self.relative_bias(jnp.asarray(distance_classes(self.config, length)))
        places = jnp.arange(length)
        distances = places - places[:, None] + length - 1
        return by_distance.astype(jnp.float32)[distances].transpose(2, 0, 1)
