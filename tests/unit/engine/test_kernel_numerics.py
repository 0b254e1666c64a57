"""Each kernel for TPU, and each way to compute attention, is near its formula in float64.

The inputs are bfloat16. Pallas' interpreter runs the kernels; memory that no one has written is NaN
there.
"""

from collections.abc import Callable
from functools import partial
from math import log
from typing import Any, Final, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental.pallas import tpu as pltpu
from numpy.typing import NDArray
from scipy.special import erf, expit

from imagefleet.worker.engine.checkpoint.job_loras import StackedFactors
from imagefleet.worker.engine.families.stable_diffusion import unet_transformer
from imagefleet.worker.engine.families.stable_diffusion.unet_transformer import Attention
from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.kernels.attention_backend import Backend
from imagefleet.worker.engine.kernels.convolution import phase_kernels
from imagefleet.worker.engine.kernels.feed_forward import add_feed_forward
from imagefleet.worker.engine.kernels.feed_forward_spec import FeedForwardWeights
from imagefleet.worker.engine.kernels.head_packing import HeadPacking
from imagefleet.worker.engine.kernels.large_convolution import convolve_large
from imagefleet.worker.engine.kernels.large_convolution_spec import KernelSpec
from imagefleet.worker.engine.kernels.packed_attention import attend_packed
from imagefleet.worker.engine.networks.blocks import LayerNorm, gelu_by_tanh
from imagefleet.worker.engine.networks.lora_layers import LoraLayer

Doubles = NDArray[np.float64]
ROUNDING: Final = 2**-8
"""The largest relative error of a number that is rounded to bfloat16."""


@pytest.fixture(autouse=True)
def interpreted() -> Any:
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")):
        yield


def _draw(*shape: int, seed: int, scale: float = 1) -> jax.Array:
    return jnp.array(scale * np.random.default_rng(seed).standard_normal(shape), jnp.bfloat16)


def _double(x: jax.Array) -> Doubles:
    return np.asarray(x, np.float64)


def _packed(q: jax.Array, k: jax.Array, v: jax.Array, *, heads: int) -> jax.Array:
    """Attend by the kernel, whose queries are already divided by √d, as powers of 2."""
    packing = HeadPacking(heads=heads, head_dim=q.shape[2] // heads)
    packed = packing.pack_lanes(q).mT, packing.pack_lanes(k), packing.pack_rows(v).mT
    return packing.unpack_rows(attend_packed(*packed, packing).mT)


def _attention_in_float64(
    q: Doubles, k: Doubles, v: Doubles, heads: int, scale: float
) -> tuple[Doubles, np.float64]:
    """Return the result, and the largest score."""
    (batch, queries, channels), keys = q.shape, k.shape[1]
    q, k, v = (x.reshape(batch, -1, heads, channels // heads).swapaxes(1, 2) for x in (q, k, v))
    scores = q @ k.swapaxes(2, 3) * scale
    assert scores.shape == (batch, heads, queries, keys)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    attended = weights / weights.sum(-1, keepdims=True) @ v
    return attended.swapaxes(1, 2).reshape(batch, queries, channels), np.abs(scores).max()


WAYS: Final[dict[str, Callable[..., jax.Array]]] = {
    "folded": partial(attention, backend=Backend.FOLDED),
    "query blocks": partial(attention, backend=Backend.QUERY_BLOCKS),
    "flash": partial(attention, backend=Backend.FLASH),
    "packed": _packed,
    "wide": partial(attention, backend=Backend.WIDE_HEADS),
}
LENGTHS: Final = {
    "folded": [(1, 1), (131, 77)],
    "query blocks": [(131, 77)],
    "flash": [(256, 384)],
    "packed": [(128, 1), (256, 77), (128, 127), (384, 384)],
    "wide": [(131, 200)],
}
"""Queries and keys that each way takes."""
SIZES: Final = (1.0, 2.4, 9.0)
"""Of queries and keys. The largest scores are 5, 25 and 300 or more."""


@pytest.mark.parametrize(
    ("way", "queries", "keys"), [(way, *pair) for way, pairs in LENGTHS.items() for pair in pairs]
)
@pytest.mark.parametrize("head_dim", [40, 64])
def test_attention_is_near_float64_for_scores_of_any_size(
    way: str, queries: int, keys: int, head_dim: int
) -> None:
    heads = 3
    q, k, v = (
        _draw(3, n, heads * head_dim, seed=seed) for seed, n in enumerate((queries, keys, keys))
    )
    sizes = jnp.array(SIZES, q.dtype)[:, None, None]
    scale = log(2) if way == "packed" else head_dim**-0.5
    q, k = (q * sizes / (head_dim**0.5 * scale)).astype(q.dtype), k * sizes
    result = WAYS[way](q, k, v, heads=heads)
    expected, largest = _attention_in_float64(_double(q), _double(k), _double(v), heads, scale)
    assert keys == 1 or largest > 250
    # The weights of the softmax and the result are rounded once each.
    errors = np.abs(_double(result) - expected).max((1, 2))
    assert (errors <= ROUNDING * np.abs(_double(v)).max((1, 2))).all(), errors


@pytest.mark.parametrize("has_lora", [False, True])
def test_a_layer_with_packed_heads_is_as_near_to_float64_as_one_without(
    has_lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing, channels = HeadPacking(heads=3, head_dim=40), 120
    layer = Attention(channels, channels, packing.heads)
    names, matrices = ("to_q", "to_k", "to_v", "to_out"), list[Doubles]()
    for seed, (name, scale) in enumerate(zip(names, (0.7, 0.7, 0.1, 0.1), strict=True)):
        linear = getattr(layer, name)
        linear.kernel = nnx.Param(_draw(channels, channels, seed=seed, scale=scale))
        if linear.bias is not None:
            linear.bias = nnx.Param(jnp.zeros(channels, jnp.bfloat16))
        down, up = (_draw(*sizes, seed=seed + 9, scale=0.3) for sizes in ((120, 4), (4, 120)))
        matrices.append(_double(linear.kernel[...]))
        if has_lora:
            matrices[-1] = matrices[-1] + _double(down) @ _double(up)
            factors = StackedFactors(down=down, up=up)
            setattr(layer, name, LoraLayer(linear, (0,) * 4, factors, jnp.ones((1, 1))))
    x, norm = _draw(1, 128, channels, seed=5), cast(LayerNorm, lambda x: x)
    q, k, v = (_double(x) @ matrix for matrix in matrices[:3])
    attended, largest = _attention_in_float64(q, k, v, packing.heads, 40**-0.5)
    assert largest > 200
    plain = layer.attend_to_itself(x, norm)
    monkeypatch.setattr(unet_transformer, "find_packing", lambda x, keys, heads: packing)
    # On CPU, XLA has no product of bfloat16 with float32 sums and the axes in this order.
    monkeypatch.setattr(
        unet_transformer,
        "_multiply",
        lambda axes, x, matrix: jnp.einsum(axes, *(a.astype(jnp.float32) for a in (x, matrix))),
    )
    errors = [
        np.sqrt(np.square(_double(result) - attended @ matrices[3]).mean())
        for result in (layer.attend_to_itself(x, norm), plain)
    ]
    # Queries, keys and values are rounded once each in both.
    assert errors[0] < 1.1 * errors[1]


@pytest.mark.parametrize("way", ["folded", "query blocks"])
def test_nan_in_masked_keys_and_values_changes_nothing(way: str) -> None:
    q, k, v = (_draw(2, n, 80, seed=n) for n in (5, 77, 76))
    v = jnp.pad(v, ((0, 0), (0, 1), (0, 0)))
    mask = jnp.arange(77) < jnp.array([[70], [1]])
    expected = WAYS[way](q, k, v, heads=2, mask=mask)
    k, v = (jnp.where(mask[:, :, None], x, jnp.nan) for x in (k, v))
    result = WAYS[way](q, k, v, heads=2, mask=mask)
    np.testing.assert_array_equal(_double(result), _double(expected))
    assert np.isfinite(_double(expected)).all()


def test_nan_in_spare_rows_of_packed_values_changes_nothing() -> None:
    packing = HeadPacking(heads=3, head_dim=40)
    q, k, v = (_draw(1, 128, 120, seed=seed) for seed in range(3))
    values = packing.pack_rows(v).reshape(1, 128, 3, packing.rows_per_head)
    spare = values.at[..., 40:].set(jnp.nan).reshape(1, 128, -1)
    expected, result = (
        _double(attend_packed(packing.pack_lanes(q).mT, packing.pack_lanes(k), rows.mT, packing))
        for rows in (packing.pack_rows(v), spare)
    )
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("shape", "channels"), [((1, 272), 320), ((3, 48), 128), ((1, 16), 64)])
@pytest.mark.parametrize("size", [1.0, 100.0])
def test_the_feed_forward_kernel_is_near_float64(
    shape: tuple[int, int], channels: int, size: float
) -> None:
    hidden = 4 * channels
    x = _draw(*shape, channels, seed=0, scale=size)
    weights = FeedForwardWeights(
        scale=_draw(channels, seed=1),
        shift=_draw(channels, seed=2),
        proj_in=_draw(channels, 2 * hidden, seed=3, scale=channels**-0.5),
        bias_in=_draw(2 * hidden, seed=4),
        proj_out=_draw(hidden, channels, seed=5, scale=hidden**-0.5),
        bias_out=_draw(channels, seed=6),
    )
    result = add_feed_forward(x, weights, epsilon=1e-5, activation=gelu_by_tanh)
    wide, w = _double(x), jax.tree.map(_double, weights)
    centred = wide - wide.mean(-1, keepdims=True)
    normalized = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    both = (normalized * w.scale + w.shift) @ w.proj_in + w.bias_in
    value, gate = both[..., :hidden], both[..., hidden:]
    added = (value * 0.5 * gate * (1 + erf(gate * 0.5**0.5))) @ w.proj_out + w.bias_out
    expected = wide + added
    # The norm and the hidden values are rounded before products, the result after them.
    tolerance = ROUNDING * (np.abs(added).max() + np.abs(expected))
    assert (np.abs(_double(result) - expected) <= tolerance).all()


@pytest.mark.parametrize("upsamples", [False, True])
@pytest.mark.parametrize(("height", "channels"), [(3, 64), (9, 160)])
def test_the_convolution_kernel_is_near_float64(
    height: int, channels: int, upsamples: bool
) -> None:
    x = _draw(2, height, 16, channels, seed=0, scale=30)
    kernel = _draw(3, 3, channels, 128, seed=1, scale=(9 * channels) ** -0.5)
    bias = _draw(2, 128, seed=2).astype(jnp.float32)
    residual = None if upsamples else _draw(2, height, 16, 128, seed=3)
    factor, shift = (_draw(2, channels, seed=seed).astype(jnp.float32) for seed in (4, 5))
    result = convolve_large(
        x,
        phase_kernels(kernel) if upsamples else kernel,
        bias,
        spec=KernelSpec(
            height=height,
            width=16,
            channels_in=channels,
            channels_out=128,
            upsamples=upsamples,
            has_residual=residual is not None,
        ),
        rows=3,
        normalize=None if upsamples else (factor, shift),
        residual=residual,
    ).values
    wide = _double(x)
    if not upsamples:
        wide = wide * _double(factor)[:, None, None] + _double(shift)[:, None, None]
        wide *= expit(wide)
    expected = _convolve_in_float64(wide, _double(kernel), repeats=2 if upsamples else 1)
    expected += _double(bias)[:, None, None] + (0 if residual is None else _double(residual))
    assert result.shape == expected.shape
    error = np.abs(_double(result) - expected)
    assert (error <= ROUNDING * (np.abs(expected).max() + np.abs(expected))).all()


@pytest.mark.parametrize("upsamples", [False, True])
@pytest.mark.parametrize("mean", [0, 100])
def test_the_means_that_the_convolution_kernel_adds_up_are_near_float64(
    mean: int, upsamples: bool
) -> None:
    x, kernel = _draw(2, 8, 16, 64, seed=0), _draw(3, 3, 64, 160, seed=1, scale=576**-0.5)
    bias = mean + _draw(2, 160, seed=2).astype(jnp.float32)
    # The lanes without a channel of a residual are NaN here, and must not reach the sums.
    residual = None if upsamples else _draw(2, 8, 16, 160, seed=3)
    result = convolve_large(
        x,
        phase_kernels(kernel) if upsamples else kernel,
        bias,
        spec=KernelSpec(
            height=8,
            width=16,
            channels_in=64,
            channels_out=160,
            upsamples=upsamples,
            has_residual=residual is not None,
        ),
        rows=4,
        residual=residual,
    )
    assert result.means is not None
    values, squares = (np.asarray(each) for each in result.means)
    assert values.dtype == squares.dtype == np.float32
    wide = _double(result.values)
    np.testing.assert_allclose(values, wide.mean((1, 2)), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(squares, np.square(wide).mean((1, 2)), rtol=1e-6)
    # A norm subtracts the square of the mean. Float32 has lost less of the standard deviation then
    # than the rounding of what the norm writes.
    variance = wide.var((1, 2))
    deviations = np.sqrt((squares - values * values) / variance)
    assert np.abs(deviations - 1).max() < min(ROUNDING / 2, 3e-7 * (10 + mean**2))


@pytest.mark.parametrize(
    ("width", "channels", "channels_out", "normalizes"),
    [(256, 160, 3, True), (256, 64, 8, True), (64, 64, 4, False), (144, 64, 4, True)],
)
def test_the_kernel_for_narrow_results_is_near_float64(
    width: int, channels: int, channels_out: int, normalizes: bool
) -> None:
    x = _draw(2, 6, width, channels, seed=0, scale=30)
    kernel = _draw(3, 3, channels, channels_out, seed=1, scale=(9 * channels) ** -0.5)
    bias = _draw(2, channels_out, seed=2).astype(jnp.float32)
    factor, shift = (_draw(2, channels, seed=seed).astype(jnp.float32) for seed in (4, 5))
    spec = KernelSpec(height=6, width=width, channels_in=channels, channels_out=channels_out)
    assert spec.is_narrow
    normalize = (factor, shift) if normalizes else None
    result = convolve_large(x, kernel, bias, spec=spec, rows=3, normalize=normalize)
    assert result.values.dtype == x.dtype
    assert result.means is None
    wide = _double(x)
    if normalizes:
        wide = wide * _double(factor)[:, None, None] + _double(shift)[:, None, None]
        wide *= expit(wide)
    expected = _convolve_in_float64(wide, _double(kernel), repeats=1)
    expected += _double(bias)[:, None, None]
    assert result.values.shape == expected.shape
    error = np.abs(_double(result.values) - expected)
    assert (error <= ROUNDING * (np.abs(expected).max() + np.abs(expected))).all()


def _convolve_in_float64(x: Doubles, kernel: Doubles, *, repeats: int) -> Doubles:
    x = x.repeat(repeats, 1).repeat(repeats, 2)
    _, height, width, _ = x.shape
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = [
        padded[:, row : row + height, column : column + width] @ kernel[row, column]
        for row in range(3)
        for column in range(3)
    ]
    return np.asarray(sum(taps), np.float64)
