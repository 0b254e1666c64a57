"""Draw the noise of images. Each image has its own keys, made of its seed and its index.

Input: keys and what the noise is for. Output: normal noise. It depends on neither batches nor
networks.
"""

from enum import IntEnum

import jax
import jax.numpy as jnp


class NoiseUse(IntEnum):
    """It is the purpose of noise. Each purpose has its own keys,
    `fold_in(key(seed), use + image_index)`.

    Keys of two purposes never coincide: an image index is far below the distance of two members.
    """

    START = 0
    STEPS = 1 << 16
    ENCODING = 2 << 16
    MASKED_ENCODING = 3 << 16


def image_key(key: jax.Array, use: NoiseUse, image_index: jax.Array) -> jax.Array:
    """Return the keys, uint32 `[b, 2]`, of one purpose for images of the seeds `key [b, 2]`."""
    return fold_in(key, use + image_index)


def fold_in(key: jax.Array, number: jax.Array) -> jax.Array:
    """Fold `number [b]` into the threefry keys `key`, uint32 `[b, 2]`."""

    def fold_one(key: jax.Array, number: jax.Array) -> jax.Array:
        return jax.random.key_data(jax.random.fold_in(_wrap_key(key), number))

    return jax.vmap(fold_one)(key, number)


def normal(key: jax.Array, size: tuple[int, ...]) -> jax.Array:
    """Draw normal noise, float32 `[b, *size]`, from keys `uint32 [b, 2]`."""
    return jax.vmap(lambda key: jax.random.normal(_wrap_key(key), size, jnp.float32))(key)


def _wrap_key(key: jax.Array) -> jax.Array:
    wrapped: jax.Array = jax.random.wrap_key_data(key, impl="threefry2x32")
    return wrapped
