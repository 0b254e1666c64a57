"""Estimate convolutions for a TPU host that is not here: `compare_convolutions.py HOST`.

The output is one line of JSON: for each map, the cycles of the chosen method and of XLA's. libtpu
must be installed. It stays loaded, so this script runs in a process of its own.
"""

import json
import sys
from functools import partial

import jax
import jax.numpy as jnp

from imagefleet.worker.engine.kernels.convolution import Method, convolve
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.placement.tpu_topology import placement_of
from tools.tpu.estimate import program_cycles

MAPS = ((64, 320), (8, 1280))
"""Height or width, and channels, of the finest and the coarsest map in the UNet of Stable Diffusion
1.4 at 512x512."""


def twice(x: jax.Array, kernel: jax.Array, method: Method | None) -> jax.Array:
    """Convolve twice, so that the layouts at both ends count once."""
    for _ in range(2):
        x = convolve(
            jax.nn.silu(x),
            kernel,
            (1, 1),
            ((1, 1), (1, 1)),
            method=method,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
    return x


def cycles(side: int, channels: int, method: Method | None, placement: Placement) -> float:
    """Return the compiler's estimate for a batch of two."""
    x, kernel = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=placement.replicated)
        for shape in ((2, side, side, channels), (3, 3, channels, channels))
    )
    with jax.set_mesh(placement.mesh):
        lowered = jax.jit(partial(twice, method=method)).lower(x, kernel)
    return program_cycles(lowered.compile().as_text() or "")


def main(host: str) -> None:
    jax.config.update("jax_platforms", "cpu")  # with libtpu here, JAX would look for a TPU
    placement = placement_of(host, devices=1)
    estimates = {
        f"{side}x{side}x{channels}": [
            cycles(side, channels, method, placement) for method in (None, Method.XLA)
        ]
        for side, channels in MAPS
    }
    print(json.dumps(estimates))


if __name__ == "__main__":
    main(*sys.argv[1:])
