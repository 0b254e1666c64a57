"""Compare the kernel for large maps on two devices with XLA's convolution.

The kernel runs in the interpreter, on one image each. The exit code is not 0 if the results differ.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.kernels.convolution import convolve_upsampled, phase_kernels
from imagefleet.worker.engine.kernels.large_convolution import convolve_large
from imagefleet.worker.engine.kernels.large_convolution_spec import KernelSpec
from imagefleet.worker.engine.placement.mesh import Placement


def main() -> None:
    placement = Placement.of(2)
    draw = np.random.default_rng(0).standard_normal
    x, kernel, bias = (
        jnp.array(draw(shape), jnp.bfloat16)
        for shape in ((2, 2, 16, 128), (3, 3, 128, 128), (128,))
    )
    expected = convolve_upsampled(x, kernel, bias, in_phases=False)
    spec = KernelSpec(height=2, width=16, channels_in=128, channels_out=128, upsamples=True)
    [split] = placement.split((x,))

    def compute(x: jax.Array) -> jax.Array:
        return convolve_large(x, phase_kernels(kernel), bias, spec=spec, rows=2)

    with pltpu.force_tpu_interpret_mode(), jax.set_mesh(placement.mesh):
        result = jax.jit(compute, out_shardings=placement.by_slot)(split)
    np.testing.assert_allclose(
        result.astype(jnp.float32), expected.astype(jnp.float32), rtol=0.02, atol=1
    )


if __name__ == "__main__":
    main()
