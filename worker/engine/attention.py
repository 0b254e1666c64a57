"""Attention behind one function, because each platform has its own fastest one.

Goes in: queries, keys and values as the networks project them. Comes out: the attended values in
the same layout. Knows no network, and the networks do not know which backend ran.

Run so far on CPU only: what is chosen for GPU and TPU follows the limits that their kernels
document. The TPU kernel is held to the formula in Pallas' interpreter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from imagefleet.worker.engine.mesh_spec import DATA, MODEL

SCORE_LIMIT: Final = {"cpu": 16 * 2**20, "gpu": 512 * 2**20, "tpu": 512 * 2**20}
"""Bytes of float32 scores that one sequence may take at once, over all its heads. In its finest
layers Stable Diffusion 1 takes 537 MB at 512x512, and 8.6 GB at 1024x1024. A CPU wants them in its
caches: the former took 0.60 s of CPU in chunks of 16 MiB against 0.98 s at once, and 412 MiB
against 1,374; elsewhere the limit is there for memory alone."""
_TPU_BLOCK: Final = 128
"""Rows and columns of a TPU's matrix unit, and of a block of its kernel."""
_CUDNN_HEAD_DIM: Final = 128
"""Widest head of cuDNN's kernel on every GPU that has one; 256 on Hopper and later."""


class Backend(StrEnum):
    """How attention is computed."""

    FOLDED = "folded"
    """Heads folded into the batch, plain batched matmuls. On CPU a whole step of a small UNet takes
    0.6 to 0.8 of the time it takes with `jax.nn.dot_product_attention`."""
    CHUNKED = "chunked"
    """The same for some queries after the other: never more than `SCORE_LIMIT` of scores."""
    CUDNN = "cudnn"
    """`jax.nn.dot_product_attention` through cuDNN's fused kernel; it keeps no scores."""
    FLASH = "flash"
    """Pallas' kernel for TPU (Dao et al. 2022); it keeps no scores."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the choice of a backend depends on."""

    queries: int
    keys: int
    heads: int
    head_dim: int
    dtype: DTypeLike
    causal: bool = False

    @property
    def score_bytes(self) -> int:
        """Of one sequence, in float32."""
        return 4 * self.heads * self.queries * self.keys


def choose(platform: str, task: Task) -> Backend:
    """The backend for a platform (`cpu`, `gpu` or `tpu`)."""
    if platform == "gpu" and _fits_cudnn(task):
        return Backend.CUDNN
    if platform == "tpu" and _fits_tpu_kernel(task):
        return Backend.FLASH
    return Backend.FOLDED if task.score_bytes <= SCORE_LIMIT[platform] else Backend.CHUNKED


def _fits_cudnn(task: Task) -> bool:
    half = task.dtype in (jnp.bfloat16, jnp.float16)
    return half and task.head_dim % 8 == 0 and task.head_dim <= _CUDNN_HEAD_DIM


def _fits_tpu_kernel(task: Task) -> bool:
    """The text's 77 keys do not; padding them would cost more than their few scores."""
    whole = task.queries % _TPU_BLOCK == 0 and task.keys % _TPU_BLOCK == 0
    return whole and task.dtype in (jnp.bfloat16, jnp.float32)


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    heads: int,
    causal: bool = False,
    backend: Backend | None = None,
) -> jax.Array:
    """softmax(q kᵀ / √d) v, per head (Vaswani et al. 2017, equation 1); softmax in float32.

    Args:
        query: `[batch, n, heads * d]`.
        key: `[batch, m, heads * d]`.
        value: `[batch, m, heads * d]`.
        heads: Number of heads; must divide the last axis.
        causal: Whether position i sees only positions <= i.
        backend: Default: `choose` for the devices JAX runs on.

    Returns:
        `[batch, n, heads * d]`.
    """
    task = Task(
        queries=query.shape[1],
        keys=key.shape[1],
        heads=heads,
        head_dim=query.shape[2] // heads,
        dtype=query.dtype,
        causal=causal,
    )
    return _COMPUTE[backend or choose(jax.default_backend(), task)](query, key, value, task)


def _split(x: jax.Array, heads: int) -> jax.Array:
    """`[b, n, heads * d]` to `[b, n, heads, d]`."""
    return x.reshape(*x.shape[:2], heads, -1)


def _fold(x: jax.Array, heads: int) -> jax.Array:
    """`[b, n, heads * d]` to `[b * heads, n, d]`."""
    batch, length, channels = x.shape
    return _split(x, heads).swapaxes(1, 2).reshape(batch * heads, length, channels // heads)


def _unfold(x: jax.Array, heads: int) -> jax.Array:
    folded, length, head_dim = x.shape
    split = x.reshape(folded // heads, heads, length, head_dim).swapaxes(1, 2)
    return split.reshape(folded // heads, length, heads * head_dim)


_WIDE: Final = {"preferred_element_type": jnp.float32}


def _attend(
    q: jax.Array, k: jax.Array, v: jax.Array, *, first: jax.Array | int, causal: bool
) -> jax.Array:
    """Folded queries, the first of which is at position `first`."""
    scores = jnp.einsum("bnd,bmd->bnm", q * q.shape[-1] ** -0.5, k, **_WIDE)
    if causal:
        positions = first + jnp.arange(q.shape[1])
        scores = jnp.where(positions[:, None] >= jnp.arange(k.shape[1]), scores, -jnp.inf)
    # Divided by its sum only after it met the values: a pass less over all scores, which is a sixth
    # of a step of a small UNet on CPU.
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    attended = jnp.einsum("bnm,bmd->bnd", weights.astype(v.dtype), v, **_WIDE)
    return (attended / weights.sum(axis=-1, keepdims=True)).astype(v.dtype)


def _folded(q: jax.Array, k: jax.Array, v: jax.Array, task: Task) -> jax.Array:
    folded = (_fold(x, task.heads) for x in (q, k, v))
    return _unfold(_attend(*folded, first=0, causal=task.causal), task.heads)


def chunks(task: Task, limit: int) -> int:
    """Parts of the queries, the fewest equal ones whose scores are within `limit`; at worst one
    query a part."""
    least = -(-task.score_bytes // limit)
    return next(
        n for n in range(min(least, task.queries), task.queries + 1) if not task.queries % n
    )


def _chunked(
    q: jax.Array, k: jax.Array, v: jax.Array, task: Task, limit: int | None = None
) -> jax.Array:
    parts = chunks(task, limit or SCORE_LIMIT[jax.default_backend()])
    length = task.queries // parts
    q, k, v = (_fold(x, task.heads) for x in (q, k, v))
    in_parts = q.reshape(q.shape[0], parts, length, -1).swapaxes(0, 1)  # [parts, b * heads, n, d]

    def attend(part: tuple[jax.Array, jax.Array]) -> jax.Array:
        return _attend(part[0], k, v, first=part[1], causal=task.causal)

    out = jax.lax.map(attend, (in_parts, length * jnp.arange(parts)))
    return _unfold(out.swapaxes(0, 1).reshape(q.shape), task.heads)


def _cudnn(q: jax.Array, k: jax.Array, v: jax.Array, task: Task) -> jax.Array:
    split = (_split(x, task.heads) for x in (q, k, v))
    out = jax.nn.dot_product_attention(*split, is_causal=task.causal, implementation="cudnn")
    return out.reshape(q.shape)


def _flash(q: jax.Array, k: jax.Array, v: jax.Array, task: Task) -> jax.Array:
    return _each_device(partial(_flash_here, task=task), q, k, v, heads=task.heads)


def _flash_here(q: jax.Array, k: jax.Array, v: jax.Array, *, task: Task) -> jax.Array:
    """One device's rows and heads: `[b, n, heads, d]`."""
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    by_head = (x.swapaxes(1, 2) for x in (q, k, v))
    out: jax.Array = flash_attention(*by_head, causal=task.causal, sm_scale=task.head_dim**-0.5)
    return out.swapaxes(1, 2)


def _each_device(
    compute: Callable[..., jax.Array], q: jax.Array, k: jax.Array, v: jax.Array, *, heads: int
) -> jax.Array:
    """XLA cannot divide a kernel it does not know between devices, so it is told how: rows along
    `data`, heads along `model` where they divide. Without a mesh there is one device."""
    split = [_split(x, heads) for x in (q, k, v)]
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        by_head = MODEL if heads % mesh.shape[MODEL] == 0 else None
        spec = PartitionSpec(DATA, None, by_head)  # type: ignore[no-untyped-call]
        compute = jax.shard_map(
            compute, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False
        )
    return compute(*split).reshape(q.shape)


_COMPUTE: Final = {
    Backend.FOLDED: _folded,
    Backend.CHUNKED: _chunked,
    Backend.CUDNN: _cudnn,
    Backend.FLASH: _flash,
}
