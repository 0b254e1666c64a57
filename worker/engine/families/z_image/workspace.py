"""Estimate the memory that a batch of Z-Image needs on a device besides the weights.

Input: configs, a shape, a workload. Output: bytes. It reads no weights and asks no device, so that
it also serves hosts that are not here.
"""

from typing import Final

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.z_image.configs import GUIDED_ROWS, TEXT_LENGTH, Configs
from imagefleet.worker.engine.families.z_image.transformer_config import TOKENS_MULTIPLE
from imagefleet.worker.engine.kernels.attention_backend import (
    MAX_SCORE_BYTES,
    AttentionSpec,
    Backend,
    choose_backend,
)
from imagefleet.worker.engine.networks.vae_memory import decoder_bytes
from imagefleet.worker.engine.placement.memory_check import Workload

_WIDE_MAPS: Final = 7
"""A block holds this many sequences of the transformer's width at once, besides its scores. On CPU
XLA's memory analysis of a transformer of width 1280 in float32, with guidance, has 152 to 182 MiB
at 512x512 and 460 MiB at 1024x1024; this estimate is 177 and 467 MiB."""
_INNER_MAPS: Final = 1
"""It holds this many of the width inside its feed-forward layer, too."""


def workspace_bytes(configs: Configs, shape: Shape, workload: Workload) -> int:
    """Estimate the bytes that a device needs for a batch of this shape, besides the weights.

    A device decodes one image at a time. A stream does so beside the next steps, so it needs both.
    """
    decoder = decoder_bytes(configs.vae, shape.height, shape.width, workload)
    step = _step_bytes(configs, shape, workload)
    texts = _text_bytes(configs, workload)
    return decoder + max(step, texts) if workload.streams else max(decoder, step, texts)


def _step_bytes(configs: Configs, shape: Shape, workload: Workload) -> int:
    transformer = configs.transformer
    tokens = configs.image_tokens(shape)
    tokens += -tokens % TOKENS_MULTIPLE + TEXT_LENGTH
    width = _WIDE_MAPS * transformer.dim + _INNER_MAPS * transformer.inner_width
    head = transformer.dim // transformer.n_heads
    scores = _score_bytes(tokens, transformer.n_heads, head, workload)
    return _rows(workload) * (tokens * width * workload.dtype.itemsize + scores)


def _text_bytes(configs: Configs, workload: Workload) -> int:
    """Return the bytes in which the texts of a batch are encoded, all at once."""
    text = configs.text_encoder
    heads = text.num_attention_heads * text.head_dim
    width = _WIDE_MAPS * max(text.hidden_size, heads) + _INNER_MAPS * text.intermediate_size
    scores = _score_bytes(TEXT_LENGTH, text.num_attention_heads, text.head_dim, workload)
    return _rows(workload) * (TEXT_LENGTH * width * workload.dtype.itemsize + scores)


def _rows(workload: Workload) -> int:
    return workload.per_device_batch * GUIDED_ROWS


def _score_bytes(tokens: int, heads: int, head_dim: int, workload: Workload) -> int:
    """Return the bytes of the scores of a sequence that are stored at once. All layers have a
    mask."""
    layer = AttentionSpec(
        queries=tokens,
        keys=tokens,
        heads=heads,
        head_dim=head_dim,
        dtype=workload.dtype,
        masked=True,
    )
    if choose_backend(workload.platform, layer) in (Backend.FOLDED, Backend.QUERY_BLOCKS):
        return min(layer.score_bytes, MAX_SCORE_BYTES[workload.platform])
    return 0
