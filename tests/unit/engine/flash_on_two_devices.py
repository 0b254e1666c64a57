"""Compare a TPU kernel on two devices with plain matmuls: `flash_on_two_devices.py MODEL [wide]`.

The kernel runs in the interpreter, split by rows (MODEL 1) or by heads (MODEL 2): that of Pallas,
or with `wide` that for heads of 128 channels, with a mask. The exit code is not 0 if the results
differ.
"""

import sys
from functools import partial

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.kernels.attention_backend import Backend
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


if __name__ == "__main__":
    main(int(sys.argv[1]), is_wide="wide" in sys.argv)
