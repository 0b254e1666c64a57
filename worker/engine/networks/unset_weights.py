"""Make the weights of a new network, which a checkpoint replaces.

Input: a shape. Output: zeros or ones of it, or its description alone. No weight is drawn at random.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

_describes: ContextVar[bool] = ContextVar("describes_weights", default=False)


@contextmanager
def described_weights() -> Iterator[None]:
    """Describe the weights of networks that are made inside this context, in place of making them.

    Such a network is the one that `nnx.eval_shape` returns. It takes a third of the time, because
    JAX traces nothing.
    """
    token = _describes.set(True)
    try:
        yield
    finally:
        _describes.reset(token)


def zeros(*shape: int) -> jax.Array:
    """Return float32 zeros of the shape, or the description of them."""
    return _unset(shape, 0.0)


def ones(*shape: int) -> jax.Array:
    """Return float32 ones of the shape, or the description of them."""
    return _unset(shape, 1.0)


def unset(key: object, shape: tuple[int, ...], dtype: DTypeLike, *_: Any, **__: Any) -> jax.Array:
    """Initialise a weight of a layer of flax as `zeros` does. The random key is not read."""
    return _unset(shape, 0.0, dtype)


def _unset(shape: tuple[int, ...], value: float, dtype: DTypeLike = jnp.float32) -> jax.Array:
    if _describes.get():
        described = jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
        return cast(jax.Array, described)
    made: jax.Array = jnp.full(shape, value, dtype)
    return made
