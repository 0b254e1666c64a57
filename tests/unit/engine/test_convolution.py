"""Both methods compute the same convolution, and each device gets the one that suits it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from imagefleet.worker.engine.kernels.convolution import (
    ConvolutionSpec,
    Method,
    choose_method,
    convolve,
    convolve_upsampled,
)
from imagefleet.worker.engine.networks.blocks import conv
from imagefleet.worker.engine.networks.matmul_flops import matmul_flops

FINEST = ConvolutionSpec(
    maps=2, pixels=2 * 64 * 64, channels_in=320, channels_out=320, is_same_3x3=True
)
"""A convolution of Stable Diffusion 1 at 512x512 with guidance, at the UNet's finest level."""

LAYOUT = ("NHWC", "HWIO", "NHWC")


def _draw(*shape: int) -> jax.Array:
    return jnp.array(np.random.default_rng(0).standard_normal(shape), jnp.float32)


@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 5, 7), (3, 1, 4), (1, 1, 1)])
def test_both_methods_compute_the_same_convolution(shape: tuple[int, int, int]) -> None:
    x, kernel = _draw(*shape, 48), _draw(3, 3, 48, 80) / np.sqrt(9 * 48)
    expected, result = (
        convolve(x, kernel, (1, 1), [(1, 1), (1, 1)], method=method, dimension_numbers=LAYOUT)
        for method in (Method.XLA, Method.SHIFTED)
    )
    np.testing.assert_allclose(result, expected, rtol=0, atol=3e-6)


def test_the_products_are_added_in_float32() -> None:
    x, kernel = _draw(1, 8, 8, 64), _draw(3, 3, 64, 64) / 24
    exact = convolve(x, kernel, (1, 1), [(1, 1), (1, 1)], dimension_numbers=LAYOUT)
    rounded = convolve(
        x.astype(jnp.bfloat16),
        kernel.astype(jnp.bfloat16),
        (1, 1),
        [(1, 1), (1, 1)],
        method=Method.SHIFTED,
    )
    assert rounded.dtype == jnp.bfloat16
    # The inputs and the result are rounded to 8 bits. Nine rounded sums would lose more.
    assert float(jnp.abs(rounded - exact).mean()) < 3e-3


@pytest.mark.parametrize("platform", ["cpu", "NVIDIA H100", "TPU v2", "TPU v3"])
def test_other_devices_run_the_convolutions_of_xla(platform: str) -> None:
    assert choose_method(platform, FINEST) is Method.XLA


SUMS_PRODUCTS = ("TPU v5 lite", "TPU v6 lite")


@pytest.mark.parametrize("kind", SUMS_PRODUCTS)
def test_v5e_and_v6e_sum_products_where_the_sums_stay_on_the_chip(kind: str) -> None:
    assert choose_method(kind, FINEST) is Method.SHIFTED
    large = replace(FINEST, maps=1, pixels=512 * 512, channels_in=128, channels_out=128)
    assert choose_method(kind, large) is Method.XLA


@pytest.mark.parametrize("kind", SUMS_PRODUCTS)
@pytest.mark.parametrize(
    "spec",
    [
        replace(FINEST, channels_in=4),
        replace(FINEST, channels_out=4),
        replace(FINEST, is_same_3x3=False),
        replace(FINEST, pixels=2 * 8 * 8, channels_in=1280, channels_out=1280),
        replace(FINEST, maps=8, pixels=8 * 32 * 32, channels_in=640, channels_out=640),
    ],
    ids=["first convolution", "last convolution", "stride 2", "coarsest map", "four images"],
)
def test_they_leave_the_other_convolutions_to_xla(kind: str, spec: ConvolutionSpec) -> None:
    assert choose_method(kind, spec) is Method.XLA


@pytest.mark.parametrize("stride", [1, 2])
def test_a_layer_of_the_networks_pads_and_strides(stride: int) -> None:
    layer = conv(4, 6, stride=stride)
    layer.kernel[...] = jnp.ones((3, 3, 4, 6))
    result = layer(jnp.ones((1, 4, 4, 4)))
    assert result.shape == (1, 4 // stride, 4 // stride, 6)
    assert float(result[0, 0, 0, 0]) == 4 * 4  # a corner sees 4 pixels of 4 channels


@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 5, 7), (1, 1, 1)])
def test_four_phases_are_the_convolution_of_the_upsampled_map(
    shape: tuple[int, int, int],
) -> None:
    x, kernel = _draw(*shape, 24), _draw(3, 3, 24, 40) / np.sqrt(9 * 24)
    expected, result = (
        convolve_upsampled(x, kernel, _draw(40), in_phases=in_phases).values
        for in_phases in (False, True)
    )
    assert result.shape == (shape[0], 2 * shape[1], 2 * shape[2], 40)
    np.testing.assert_allclose(result, expected, rtol=0, atol=3e-6)


def test_the_cpu_upsamples_large_maps_in_phases() -> None:
    def flops(side: int) -> int:
        return matmul_flops(convolve_upsampled, jnp.ones((1, side, side, 4)), kernel, jnp.zeros(4))

    kernel = jnp.ones((3, 3, 4, 4))
    assert flops(8) == 16 * 2 * 8 * 8 * 4 * 4
    assert flops(4) == 36 * 2 * 4 * 4 * 4 * 4
