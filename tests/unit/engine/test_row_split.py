"""Devices that share weights compute different rows where that exchanges less."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from imagefleet.worker.engine.networks.blocks import conv
from imagefleet.worker.engine.networks.row_split import (
    compute_by_rows,
    compute_together,
    splits_rows,
)
from imagefleet.worker.engine.placement.mesh import (
    Placement,
    devices_per_copy,
    images_on_device,
)

FLAGS = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PYTHONPATH": os.getcwd()}


def test_large_maps_of_a_prompt_and_its_negative_are_split_by_rows() -> None:
    assert not splits_rows(8, 4096, 320)  # without a mesh
    with jax.set_mesh(Placement.of(8).mesh):
        assert not splits_rows(8, 4096, 320)  # each device has a whole copy
    with jax.set_mesh(Placement.of(8, 2).mesh):  # two rows for each of four copies
        assert splits_rows(8, 4096, 320)  # levels of Stable Diffusion 1.4
        assert splits_rows(8, 1024, 640)
        assert not splits_rows(8, 256, 1280)
        assert not splits_rows(8, 1024, 1280)  # the last one of SDXL
        assert splits_rows(32, 1024, 1280)  # with four images a copy
        assert not splits_rows(4, 4096, 320)  # one row: no guidance
        assert not splits_rows(12, 4096, 320)  # three rows: the guidance of an edited image


@pytest.mark.parametrize("run", [compute_by_rows, compute_together])
def test_layers_compute_the_same_on_devices_that_share_weights(
    run: type[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    placement, seen = Placement.of(8, 2), []
    draw = np.random.default_rng(0).standard_normal
    layer, x = conv(4, 6), jnp.asarray(draw((8, 16, 16, 4)), jnp.float32)
    layer.kernel[...] = jnp.asarray(draw(layer.kernel.shape), jnp.float32)
    expected = layer(x)

    def compute(layer: nnx.Conv, x: jax.Array) -> jax.Array:
        seen.append((devices_per_copy(), images_on_device(x)))
        return layer(x)

    @jax.jit
    def program(kernel: jax.Array, x: jax.Array) -> jax.Array:
        held = conv(4, 6)
        held.kernel[...] = kernel
        result: jax.Array = run(compute, held, x)  # type: ignore[call-arg,assignment]
        assert devices_per_copy() == 2  # again
        return result

    kernel = jax.device_put(layer.kernel[...], placement.weight_sharding((3, 3, 4, 6)))
    with jax.set_mesh(placement.mesh):
        result = program(kernel, placement.split(x))
    np.testing.assert_allclose(result, expected, atol=1e-5)
    assert seen == [(1, 1) if run is compute_by_rows else (2, 2)]


def test_a_kernel_takes_the_rows_of_its_device() -> None:
    # It runs in its own process. With two threads, one for each device, the interpreter waits for
    # itself, and JAX has as many threads as there are virtual devices.
    subprocess.run(
        [sys.executable, Path(__file__).with_name("rows_on_two_devices.py")],
        env={**os.environ, **FLAGS},
        check=True,
        timeout=900,
    )
