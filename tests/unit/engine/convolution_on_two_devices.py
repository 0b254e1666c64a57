"""Compare the kernel for large maps on two devices with XLA's convolution.

The kernel runs in the interpreter, on one image each. The exit code is not 0 if the results differ.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.kernels.convolution import convolve_upsampled, phase_kernels
from imagefleet.worker.engine.kernels.feature_map import FeatureMap
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
    expected = convolve_upsampled(x, kernel, bias, in_phases=False).values
    spec = KernelSpec(height=2, width=16, channels_in=128, channels_out=128, upsamples=True)
    [split] = placement.split((x,))

    def compute(x: jax.Array) -> FeatureMap:
        return convolve_large(x, phase_kernels(kernel), bias, spec=spec, rows=2)

    with pltpu.force_tpu_interpret_mode(), jax.set_mesh(placement.mesh):
        result = jax.jit(compute, out_shardings=placement.by_slot)(split)
    wide = result.values.astype(jnp.float32)
    np.testing.assert_allclose(wide, expected.astype(jnp.float32), rtol=0.02, atol=1)
    assert result.means is not None
    np.testing.assert_allclose(result.means.values, wide.mean((1, 2)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result.means.squares, (wide**2).mean((1, 2)), rtol=1e-4)


if __name__ == "__main__":
    main()
