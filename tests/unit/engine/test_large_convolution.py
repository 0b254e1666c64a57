"""The kernel for large maps computes the network's formula, and each device gets what suits it.

Pallas' interpreter runs the kernel here. tests/tpu compiles it.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.kernels import large_convolution
from imagefleet.worker.engine.kernels.convolution import convolve_upsampled, phase_kernels
from imagefleet.worker.engine.kernels.feature_map import FeatureMap
from imagefleet.worker.engine.kernels.large_convolution import (
    block_rows,
    convolve_large,
    find_kernel,
    has_kernel,
)
from imagefleet.worker.engine.kernels.large_convolution_spec import KernelSpec
from imagefleet.worker.engine.networks.blocks import GroupNorm, conv, normalize_and_convolve
from imagefleet.worker.engine.placement.tpu_hosts import GENERATIONS

FINEST = KernelSpec(height=512, width=512, channels_in=128, channels_out=128)
"""A convolution of the decoder of Stable Diffusion 1 at 512x512, at its finest level."""
NEWER = ("v4", "v5e", "v5p", "v6e")
"""Their compilers take products of bfloat16 in kernels."""
ROUNDING = 2**-8
"""Relative error of a number that is rounded to bfloat16."""


def _draw(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.array(np.random.default_rng(seed).standard_normal(shape), jnp.bfloat16)


def _spec(x: jax.Array, kernel: jax.Array, **fields: bool) -> KernelSpec:
    return KernelSpec(
        height=x.shape[1],
        width=x.shape[2],
        channels_in=x.shape[3],
        channels_out=kernel.shape[-1],
        **fields,
    )


@pytest.mark.parametrize(
    ("channels", "channels_out", "rows"),  # of a block: 4 blocks, or one
    [(128, 128, 8), (128, 128, 2), (128, 3, 2), (160, 320, 2)],
)
def test_the_kernel_normalises_convolves_and_adds(
    channels: int, channels_out: int, rows: int
) -> None:
    x, residual = _draw(2, 8, 16, channels), _draw(2, 8, 16, channels_out, seed=1)
    offset = _draw(2, channels_out, seed=6)
    norm, layer = GroupNorm(channels, 32, 1e-6), conv(channels, channels_out)
    norm.scale[...], norm.bias[...] = _draw(channels, seed=2), _draw(channels, seed=3)
    assert layer.bias is not None
    layer.kernel[...] = _draw(3, 3, channels, channels_out, seed=4) / 34
    layer.bias[...] = _draw(channels_out, seed=5)
    wide, *added = (array.astype(jnp.float32) for array in (x, offset, residual))
    expected = normalize_and_convolve(
        norm, layer, FeatureMap(wide), offset=added[0], residual=added[1]
    ).values
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")):
        result = convolve_large(
            x,
            layer.kernel[...].astype(x.dtype),
            layer.bias[...].astype(jnp.float32) + added[0],
            spec=_spec(x, layer.kernel[...], has_residual=True),
            rows=rows,
            normalize=norm.scale_and_shift(FeatureMap(x)),
            residual=residual,
        ).values
    assert result.dtype == jnp.bfloat16
    assert result.shape == expected.shape
    # Rounded are the inputs of up to 1,440 products, which are of size 1/34, and the result.
    tolerance = 4 * ROUNDING * np.maximum(1, np.abs(expected))
    assert np.all(np.abs(result.astype(jnp.float32) - expected) <= tolerance)


@pytest.mark.parametrize(("channels", "rows"), [(128, 4), (160, 2)])
def test_the_kernel_upsamples(channels: int, rows: int) -> None:
    x, kernel = _draw(2, 4, 32, channels), _draw(3, 3, channels, 256) / 34
    bias = _draw(256, seed=1)
    wide = (array.astype(jnp.float32) for array in (x, kernel, bias))
    expected = convolve_upsampled(*wide, in_phases=False).values
    spec = _spec(x, kernel, upsamples=True)
    with pltpu.force_tpu_interpret_mode():
        result = convolve_large(x, phase_kernels(kernel), bias, spec=spec, rows=rows).values
    assert result.shape == expected.shape
    tolerance = 4 * ROUNDING * np.maximum(1, np.abs(expected))
    assert np.all(np.abs(result.astype(jnp.float32) - expected) <= tolerance)


def test_the_norm_of_one_pass_is_that_of_two() -> None:
    norm = GroupNorm(64, 8, 1e-6)
    norm.scale[...], norm.bias[...] = (_draw(64, seed=n).astype(jnp.float32) for n in (1, 2))
    x = 3 + _draw(2, 16, 16, 64).astype(jnp.float32)  # its mean is three times its deviation
    scale, shift = norm.scale_and_shift(FeatureMap(x))
    normalized = x * scale[:, None, None] + shift[:, None, None]
    np.testing.assert_allclose(normalized, norm(FeatureMap(x)), atol=2e-5)


def test_images_are_split_over_devices() -> None:
    # It runs in its own process: the interpreter needs as many free threads as there are devices.
    flags = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "NPROC": "8",  # threads of XLA
        "PYTHONPATH": os.getcwd(),
    }
    subprocess.run(
        [sys.executable, Path(__file__).with_name("convolution_on_two_devices.py")],
        env={**os.environ, **flags},
        check=True,
        timeout=900,
    )


@pytest.mark.parametrize("kind", ["TPU v4", "TPU v5 lite", "TPU v5", "TPU v6 lite"])
def test_large_maps_get_the_kernel(kind: str) -> None:
    rows = block_rows(kind, FINEST, 8)
    assert rows is not None
    assert FINEST.height % rows == 0
    assert block_rows(kind, replace(FINEST, height=64, width=64), 8) is None
    assert block_rows(kind, replace(FINEST, height=64, width=64, upsamples=True), 8) is not None
    assert block_rows(kind, replace(FINEST, channels_in=4), 8) is None
    assert block_rows(kind, replace(FINEST, width=520), 8) is None
    assert block_rows(kind, replace(FINEST, height=509), 8) is None  # a prime


@pytest.mark.parametrize(
    ("kind", "gets_kernel"),
    [("TPU v4", True), ("TPU v5 lite", False), ("TPU v5", True), ("TPU v6 lite", True)],
)
def test_a_few_small_maps_get_the_kernel_unless_products_are_as_fast(
    kind: str, gets_kernel: bool
) -> None:
    small = replace(FINEST, height=32, width=32, channels_in=320, channels_out=320)
    assert (block_rows(kind, small, 4) is not None) is gets_kernel
    assert block_rows(kind, small, 8) is None
    assert block_rows(kind, replace(small, height=16, width=16), 4) is None


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA H100", "TPU v2", "TPU v3"])
def test_other_devices_have_no_kernel(kind: str) -> None:
    assert block_rows(kind, FINEST, 1) is None


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_kernel_is_for_bfloat16_and_whole_copies_of_the_weights(generation: str) -> None:
    kind = GENERATIONS[generation].device_kind
    assert has_kernel(kind, jnp.bfloat16, 1) is (generation not in ("v2", "v3"))
    assert not has_kernel(kind, np.float32, 1)
    assert not has_kernel(kind, jnp.bfloat16, 2)


def test_few_channels_get_the_kernel_for_narrow_results() -> None:
    last = replace(FINEST, channels_out=3)
    assert last.is_narrow
    assert replace(last, channels_out=8).is_narrow
    assert not replace(last, channels_out=9).is_narrow
    assert not replace(last, upsamples=True).is_narrow
    assert not replace(last, has_residual=True).is_narrow
    assert all(block_rows(GENERATIONS[name].device_kind, last, 1) == 8 for name in NEWER)
    larger = replace(last, height=1024, width=1024)
    assert all(block_rows(GENERATIONS[name].device_kind, larger, 1) for name in NEWER)
    latents = replace(last, height=64, width=64, channels_in=320, channels_out=4)
    for maps in (2, 8):
        assert all(block_rows(GENERATIONS[name].device_kind, latents, maps) for name in NEWER)
    smaller = replace(latents, height=32, width=32)
    assert block_rows("TPU v5 lite", smaller, 2) is None


def test_blocks_have_fewer_rows_where_memory_is_small() -> None:
    wide = replace(FINEST, channels_in=512, channels_out=512, height=256, width=256)
    assert block_rows("TPU v5 lite", wide, 1) == 8
    assert (block_rows("TPU v4", wide, 1) or 0) < 8


def test_float32_and_maps_of_other_devices_are_left_to_xla(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = jnp.zeros((1, 128, 128, 128), jnp.bfloat16)
    kernel = jnp.zeros((3, 3, 128, 128), jnp.bfloat16)
    assert find_kernel(x, kernel) is None  # on CPU
    monkeypatch.setattr(large_convolution, "_MEMORY_BYTES", {"cpu": 2**30})
    assert find_kernel(x, kernel) is not None
    assert find_kernel(x.astype(jnp.float32), kernel) is None
