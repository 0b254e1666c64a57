"""Rotate queries and keys by their positions (Su et al. 2021, section 3.2).

Input: positions, and queries or keys. Output: the same, rotated. Angles are computed on the host,
once for each position that may occur, so that all networks read them from tables.

Axes: b rows, n tokens, h heads, d width of a head.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.kernels.head_rotation_kernel import rotate_heads, rotates_by_kernel
from imagefleet.worker.engine.networks.blocks import RmsNorm
from imagefleet.worker.engine.placement.mesh import is_bfloat16_on_tpu

_AXES_OF_HEADS: Final = 2
"""The axis of the heads is the second last one."""


class Rotation(NamedTuple):
    """It has the cosine and the sine of each angle, float32 `[…, n, d / 2]`."""

    cosines: jax.Array | NDArray[np.float32]
    sines: jax.Array | NDArray[np.float32]

    @classmethod
    def of_angles(cls, angles: NDArray[np.floating[Any]]) -> "Rotation":
        """Return the rotation by these angles, rounded after their cosine and sine are taken."""
        return cls(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))

    def at(self, positions: jax.Array) -> "Rotation":
        """Return the rotations at positions `[…, n]` of a table `[positions, d / 2]`."""
        return Rotation(*(jnp.asarray(table)[positions] for table in self))

    def of_tokens(self, tokens: slice) -> "Rotation":
        """Return the rotations of some of the tokens."""
        return Rotation(*(table[..., tokens, :] for table in self))


def place_heads(
    x: jax.Array, norm: RmsNorm | None, rotation: Rotation | None, *, heads: int
) -> jax.Array:
    """Normalise the heads of queries or keys, and rotate their pairs by the positions of tokens.

    Args:
        x: `[b, n, h d]`.
        norm: Of a head. None: heads stay as they are.
        rotation: For the tokens. The numbers of a pair lie side by side. None: nothing is rotated.
        heads: Number of heads.
    """
    if norm is not None and rotation is not None and rotates_by_kernel(x, heads):
        cosines, sines = (jnp.asarray(each).reshape(-1, *each.shape[-2:]) for each in rotation)
        scale, epsilon = norm.scale[...], norm.epsilon
        return rotate_heads(x, scale, cosines, sines, heads=heads, epsilon=epsilon)
    by_head = x.reshape(*x.shape[:2], heads, -1)
    by_head = by_head if norm is None else norm(by_head)
    by_head = by_head if rotation is None else rotate_pairs(by_head, rotation)
    return by_head.reshape(x.shape)


def axis_angles(
    places: NDArray[np.int64], widths: Sequence[int], theta: float
) -> NDArray[np.float64]:
    """Return the angles of positions with several numbers, `[n, d / 2]`.

    Args:
        places: `[n, axes]`.
        widths: How many numbers of a head each of the axes rotates.
        theta: The base of the angles.
    """
    angles = []
    for axis, width in enumerate(widths):
        frequencies = 1 / theta ** (np.arange(0, width, 2) / width)
        angles.append(np.outer(places[:, axis], frequencies))
    return np.concatenate(angles, axis=1)


def rotate_halves(x: jax.Array, rotation: Rotation) -> jax.Array:
    """Rotate pairs of which one half of a head has the first numbers and the other the second ones.

    Args:
        x: `[b, n, h, d]`.
        rotation: For the tokens.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cosines, sines = _for_all_heads(rotation)
    rotated = [first * cosines - second * sines, second * cosines + first * sines]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def rotate_pairs(x: jax.Array, rotation: Rotation) -> jax.Array:
    """Rotate pairs of numbers that lie side by side in a head.

    Args:
        x: `[b, n, h, d]`.
        rotation: For the tokens.
    """
    if is_bfloat16_on_tpu(x):
        return rotate_by_partners(x, rotation)
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    cosines, sines = _for_all_heads(rotation)
    rotated = [first * cosines - second * sines, second * cosines + first * sines]
    return jnp.stack(rotated, axis=-1).reshape(x.shape).astype(x.dtype)


def rotate_by_partners(x: jax.Array, rotation: Rotation) -> jax.Array:
    """Rotate as `rotate_pairs` does, in bfloat16, with a product that swaps the numbers of a pair.

    A TPU keeps a head in its 128 lanes then, where pairs in an axis of their own are copied several
    times. The product is exact, since each sum has one number. docs/tpu.md has the estimates.
    """
    cosines, sines = (jnp.repeat(each, 2, axis=-1) for each in _for_all_heads(rotation))
    places = np.arange(x.shape[-1])
    swap = np.zeros((len(places), len(places)), np.float32)
    swap[places ^ 1, places] = np.where(places % 2 == 0, -1, 1)
    partners = jnp.einsum(
        "bnhd,de->bnhe", x, jnp.asarray(swap, x.dtype), preferred_element_type=jnp.float32
    )
    return (x.astype(jnp.float32) * cosines + partners * sines).astype(x.dtype)


def _for_all_heads(rotation: Rotation) -> tuple[jax.Array, jax.Array]:
    cosines, sines = (jnp.expand_dims(each, -_AXES_OF_HEADS) for each in rotation)
    return cosines, sines
