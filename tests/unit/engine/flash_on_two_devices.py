"""Compare Pallas' TPU kernel on two devices with plain matmuls: `flash_on_two_devices.py MODEL`.

The kernel runs in the interpreter, split by rows (MODEL 1) or by heads (MODEL 2). The exit code is
not 0 if the results differ.
"""

import sys
from functools import partial

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.kernels.attention_backend import Backend
from imagefleet.worker.engine.placement.mesh import Placement


def main(model: int) -> None:
    placement = Placement.of(2, model)
    draw = np.random.default_rng(0).standard_normal
    arrays = tuple(draw((2, 128, 32)).astype(np.float32) for _ in range(3))
    expected = attention(*map(jax.numpy.asarray, arrays), heads=2, backend=Backend.FOLDED)
    flash = jax.jit(
        partial(attention, heads=2, backend=Backend.FLASH), out_shardings=placement.by_slot
    )
    with pltpu.force_tpu_interpret_mode(), jax.set_mesh(placement.mesh):
        result = flash(*placement.split(arrays))
    np.testing.assert_allclose(result, expected, atol=1e-6)


if __name__ == "__main__":
    main(int(sys.argv[1]))
