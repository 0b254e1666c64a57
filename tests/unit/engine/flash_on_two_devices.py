"""Compare a TPU kernel on two devices with plain matmuls: `flash_on_two_devices.py MODEL [KERNEL]`.

The kernel runs in the interpreter, split by rows (MODEL 1) or by heads (MODEL 2): that of Pallas,
with `wide` that for heads of 128 channels, with a mask, or with `packed` that for heads side by
side. The exit code is not 0 if the results differ.
"""

import sys
from functools import partial

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.kernels.attention_backend import Backend
from imagefleet.worker.engine.kernels.head_packing import HeadPacking
from imagefleet.worker.engine.kernels.packed_attention import attend_packed
from imagefleet.worker.engine.placement.mesh import Placement


def main(model: int, is_wide: bool) -> None:
    placement = Placement.of(2, model)
    draw = np.random.default_rng(0).standard_normal
    width = 256 if is_wide else 32
    arrays = tuple(draw((2, 128, width)).astype(np.float32) for _ in range(3))
    mask = np.arange(128) < np.array([[100], [128]]) if is_wide else None
    backend = Backend.WIDE_HEADS if is_wide else Backend.FLASH

    def attend(*arrays: jax.Array, mask: jax.Array | None, backend: Backend) -> jax.Array:
        return attention(*arrays, heads=2, mask=mask, backend=backend)

    on_one = map(jax.numpy.asarray, arrays)
    whole_mask = None if mask is None else jax.numpy.asarray(mask)
    expected = attend(*on_one, mask=whole_mask, backend=Backend.FOLDED)
    flash = jax.jit(partial(attend, backend=backend), out_shardings=placement.by_slot)
    with pltpu.force_tpu_interpret_mode(), jax.set_mesh(placement.mesh):
        result = flash(*placement.split(arrays), mask=placement.split(mask))
    np.testing.assert_allclose(result, expected, atol=1e-6)


def compare_packed(model: int) -> None:
    """Compare the kernel for heads side by side, six heads of 64."""
    placement, heads, head_dim = Placement.of(2, model), 6, 64
    packing = HeadPacking(heads=heads, head_dim=head_dim, parts=model)
    draw = np.random.default_rng(0).standard_normal
    q, k, v = (draw((2, length, heads * head_dim)).astype(np.float32) for length in (256, 128, 128))
    expected = attention(*map(jax.numpy.asarray, (q, k, v)), heads=heads, backend=Backend.FOLDED)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scaled = packing.pack_lanes(q * packing.query_scale).mT
        values = packing.pack_rows(v).mT
        return packing.unpack_rows(attend_packed(scaled, packing.pack_lanes(k), values, packing).mT)

    with pltpu.force_tpu_interpret_mode(), jax.set_mesh(placement.mesh):
        result = jax.jit(attend, out_shardings=placement.by_slot)(*placement.split((q, k, v)))
    np.testing.assert_allclose(result, expected, atol=6e-6)


if __name__ == "__main__":
    if "packed" in sys.argv:
        compare_packed(int(sys.argv[1]))
    else:
        main(int(sys.argv[1]), is_wide="wide" in sys.argv)
