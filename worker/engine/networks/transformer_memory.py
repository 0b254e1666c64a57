"""Estimate the memory that a transformer needs on a device besides its weights.

Input: widths, numbers of tokens, a workload. Output: bytes. It asks no device, so that it also
serves hosts that are not here.
"""

from dataclasses import dataclass
from typing import Final

from imagefleet.worker.engine.kernels.attention_backend import (
    AttentionSpec,
    stored_score_bytes,
)
from imagefleet.worker.engine.networks.qwen3_text import Qwen3Config
from imagefleet.worker.engine.networks.t5_text import T5Config
from imagefleet.worker.engine.placement.memory_check import Workload

_WIDE_MAPS: Final = 7
"""A block holds this many sequences of the transformer's width at once, besides its scores. On CPU
XLA's memory analysis of Z-Image with width 1280 in float32, with guidance, has 152 to 182 MiB at
512x512 and 460 MiB at 1024x1024; this estimate is 177 and 467 MiB."""
_INNER_MAPS: Final = 1
"""It holds this many of the width inside its feed-forward layer, too."""


@dataclass(frozen=True, kw_only=True)
class BlockSizes:
    """It has the sizes of the largest block of a transformer."""

    width: int
    inner_width: int
    """It is the width inside the feed-forward layer."""
    heads: int
    head_dim: int
    masked: bool
    """Whether attention has a mask."""
    causal: bool = False
    """Whether a token attends to those before it only. No kernel for TPU does so with a mask."""

    @classmethod
    def of_text(cls, config: Qwen3Config) -> "BlockSizes":
        """Return the sizes of a text encoder.

        With those of Qwen3 4B and 512 tokens the compiler for v5e counts 26 MB for one text, 65 for
        two and 878 for 16; the estimate is 73, 146 and 1,166 MB.
        """
        heads, head_dim = config.num_attention_heads, config.head_dim
        return cls(
            width=max(config.hidden_size, heads * head_dim),
            inner_width=config.intermediate_size,
            heads=heads,
            head_dim=head_dim,
            masked=True,
            causal=True,
        )


def sequence_bytes(sizes: BlockSizes, tokens: int, workload: Workload) -> int:
    """Estimate the bytes that a block needs for one sequence of tokens."""
    maps = _WIDE_MAPS * sizes.width + _INNER_MAPS * sizes.inner_width
    return tokens * maps * workload.dtype.itemsize + _score_bytes(sizes, tokens, workload)


def t5_bytes(config: T5Config, tokens: int, workload: Workload) -> int:
    """Estimate the bytes that a block of T5's encoder needs for one sequence of tokens.

    No kernel adds the bias of its scores. So the bias, the scores and their exponentials are
    stored, for all heads in float32.
    """
    maps = _WIDE_MAPS * max(config.d_model, config.inner_width) + 2 * config.d_ff
    return tokens * maps * workload.dtype.itemsize + 3 * 4 * config.num_heads * tokens**2


def batch_bytes(decoder: int, step: int, texts: int, workload: Workload) -> int:
    """Return the bytes of a batch, or of a stream, by those of its programs.

    A stream decodes beside its next steps. Otherwise the programs run one after another.
    """
    return decoder + max(step, texts) if workload.streams else max(decoder, step, texts)


def _score_bytes(sizes: BlockSizes, tokens: int, workload: Workload) -> int:
    """Return the bytes of the scores of a sequence that are stored at once."""
    layer = AttentionSpec(
        queries=tokens,
        keys=tokens,
        heads=sizes.heads,
        head_dim=sizes.head_dim,
        dtype=workload.dtype,
        causal=sizes.causal,
        masked=sizes.masked,
    )
    return stored_score_bytes(workload.platform, layer)
