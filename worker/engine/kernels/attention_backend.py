"""Choose the implementation of attention for a device.

Input: the sizes and the dtype of a call, and a platform. Output: the name of an implementation in
`worker.engine.kernels.attention`. It computes nothing.

So far all implementations ran on CPU only. The choices for TPU follow their compiler, which
compiles every layer of the published models in a test; docs/tpu.md has its estimates. The choices
for GPU follow the documented limits of cuDNN.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import jax.numpy as jnp
from jax.typing import DTypeLike

MAX_SCORE_BYTES: Final = {"cpu": 16 * 2**20, "gpu": 512 * 2**20, "tpu": 512 * 2**20}
"""One sequence may take this many bytes of float32 scores at once, over all its heads. The finest
layers of Stable Diffusion 1 take 537 MB at 512x512 and 8.6 GB at 1024x1024. On CPU the scores
should fit the caches: at 512x512, blocks of 16 MiB took 0.60 s of CPU and 412 MiB of memory, and
all scores at once took 0.98 s and 1,374 MiB. On other platforms the limit only saves memory."""
_LARGE_HEAD_BYTES: Final = 2**19
"""If the float32 scores of a head of one sequence take more bytes than this, a CPU computes one
head after another: 768 tokens in 4 heads of 64 took 172 ms of CPU for 8 sequences, and take 85; for
one sequence they took 21, and take 12. With 256 tokens it makes no difference."""
TPU_LANES: Final = 128
"""A TPU's registers have this many columns. Blocks of the TPU kernel, and heads that are wider, are
multiples of it."""
MULTIPLIES_FLOAT32_ONLY: Final = ("TPU v2", "TPU v3")
"""The compiler for these devices refuses kernels that multiply bfloat16. It accepts float32, and
rounds the operands of a product to bfloat16 as it does everywhere. For a layer of 4096 pixels with
8 heads it estimates less than half of the time that plain matmuls of bfloat16 take."""
_MAX_KEYS_WITHOUT_KERNEL: Final = 256
"""With up to this many keys, plain matmuls take less time than the kernel and the padding of heads
of 160: a layer of Stable Diffusion 1 with 256 pixels takes 1.15 million cycles in place of 1.29 on
v2, by the compiler's estimate."""
_MAX_CUDNN_HEAD_DIM: Final = 128
"""The widest head that cuDNN's kernel supports on all GPUs; on Hopper and later it is 256."""


class Backend(StrEnum):
    """The backend says which implementation computes attention."""

    FOLDED = "folded"
    """It computes plain batched matmuls with the heads folded into the batch. On CPU a step of a
    small UNet takes 0.6 to 0.8 of the time that it takes with `jax.nn.dot_product_attention`."""
    BY_HEAD = "by_head"
    """It computes `FOLDED` for one head of one sequence after another, so that the scores stay in
    the caches."""
    QUERY_BLOCKS = "query_blocks"
    """It computes `FOLDED` for one block of queries after another, so that scores stay within
    `MAX_SCORE_BYTES`."""
    CUDNN = "cudnn"
    """It is `jax.nn.dot_product_attention` with cuDNN's fused kernel, which stores no scores."""
    FLASH = "flash"
    """It is Pallas' flash attention for TPU (Dao et al. 2022), which stores no scores."""
    WIDE_HEADS = "wide_heads"
    """It is flash attention for TPU by a kernel of ours, for heads of 128 channels. It takes a
    mask, and any number of tokens. Heads of 64 are filled up with zeros."""


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """It has the sizes and the dtype of an attention call, which determine its backend."""

    queries: int
    keys: int
    heads: int
    head_dim: int
    dtype: DTypeLike
    causal: bool = False
    masked: bool = False
    """Whether a mask may exclude some keys."""

    @property
    def score_bytes(self) -> int:
        """Return the bytes of the scores of one sequence in float32."""
        return self.heads * self.head_score_bytes

    @property
    def head_score_bytes(self) -> int:
        """Return the bytes of the scores of one head of one sequence in float32."""
        return 4 * self.queries * self.keys


def stored_score_bytes(platform: str, spec: AttentionSpec) -> int:
    """Return the bytes of the scores of a sequence that a device stores at once."""
    match choose_backend(platform, spec):
        case Backend.FOLDED | Backend.QUERY_BLOCKS:
            return min(spec.score_bytes, MAX_SCORE_BYTES[platform])
        case Backend.BY_HEAD:
            return spec.head_score_bytes
        case _:
            return 0


def choose_backend(platform: str, spec: AttentionSpec) -> Backend:
    """Choose the backend for a platform (`cpu`, `gpu` or `tpu`)."""
    if platform == "gpu" and _fits_cudnn(spec) and not spec.masked:
        return Backend.CUDNN
    if platform == "tpu" and _fits_wide_heads(spec):
        return Backend.WIDE_HEADS
    if platform == "tpu" and _fits_tpu_kernel(spec) and not spec.masked:
        return Backend.FLASH
    is_large = platform == "cpu" and spec.head_score_bytes > _LARGE_HEAD_BYTES
    if is_large and spec.head_score_bytes <= MAX_SCORE_BYTES[platform]:
        return Backend.BY_HEAD
    return Backend.FOLDED if spec.score_bytes <= MAX_SCORE_BYTES[platform] else Backend.QUERY_BLOCKS


def _fits_cudnn(spec: AttentionSpec) -> bool:
    half_precision = spec.dtype in (jnp.bfloat16, jnp.float16)
    return half_precision and spec.head_dim % 8 == 0 and spec.head_dim <= _MAX_CUDNN_HEAD_DIM


def _fits_tpu_kernel(spec: AttentionSpec) -> bool:
    """Return whether queries and keys are whole blocks.

    The 77 keys of a text are no whole block. Padding them would cost more than their few scores.
    With few keys, the padding of heads of 160 costs more than the kernel saves.
    """
    whole_blocks = spec.queries % TPU_LANES == 0 and spec.keys % TPU_LANES == 0
    is_small = spec.head_dim > TPU_LANES and spec.keys <= _MAX_KEYS_WITHOUT_KERNEL
    return whole_blocks and not is_small and spec.dtype in (jnp.bfloat16, jnp.float32)


def _fits_wide_heads(spec: AttentionSpec) -> bool:
    """Return whether the kernel for heads of 128 channels computes the layer, at any length of a
    block or more. Heads of 64, filled up, it computes where tokens attend to each other and
    Pallas' kernel has no whole blocks: a layer of Stable Diffusion 3 has 4,429 tokens."""
    is_long = spec.queries >= TPU_LANES and spec.keys >= TPU_LANES
    is_joint = spec.queries == spec.keys and not _fits_tpu_kernel(spec)
    is_half = spec.head_dim == TPU_LANES // 2 and is_joint
    is_wide = (spec.head_dim == TPU_LANES or is_half) and not spec.causal
    return is_long and is_wide and spec.dtype in (jnp.bfloat16, jnp.float32)
