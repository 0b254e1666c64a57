"""The kernel for heads of 128 channels computes softmax(q kᵀ / √d) v of the keys that count.

It runs in Pallas' interpreter, and float64 numpy is the reference.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike
from numpy.typing import NDArray

from imagefleet.worker.engine.kernels import wide_attention_kernel
from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.kernels.attention_backend import Backend
from imagefleet.worker.engine.kernels.wide_attention_kernel import best_block, block_length

Array = NDArray[np.float64]
WIDTH = 128
FLAGS = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PYTHONPATH": os.getcwd()}


def _draw(rows: int, queries: int, keys: int, heads: int) -> tuple[Array, Array, Array]:
    draw = np.random.default_rng(0).standard_normal
    q, k, v = (draw((rows, length, heads * WIDTH)) for length in (queries, keys, keys))
    return q, k, v


def _reference(q: Array, k: Array, v: Array, mask: NDArray[np.bool_]) -> Array:
    result = np.zeros_like(q)
    for row, counts in enumerate(mask):
        for head in range(0, q.shape[2], WIDTH):
            part = slice(head, head + WIDTH)
            scores = q[row, :, part] @ k[row, counts, part].T / np.sqrt(WIDTH)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            result[row, :, part] = weights @ v[row, counts, part]
    return result


def _compute(
    q: Array, k: Array, v: Array, mask: NDArray[np.bool_] | None, dtype: DTypeLike = jnp.float32
) -> Array:
    arrays = (jnp.asarray(x, dtype) for x in (q, k, v))
    heads = q.shape[2] // WIDTH
    counts = None if mask is None else jnp.asarray(mask)
    with pltpu.force_tpu_interpret_mode():
        result = attention(*arrays, heads=heads, mask=counts, backend=Backend.WIDE_HEADS)
    return np.asarray(result, np.float64)


@pytest.fixture(autouse=True)
def small_blocks() -> Iterator[None]:
    """A block has at most 256 tokens, so that short sequences have several."""
    with patch.object(wide_attention_kernel, "_SMALL_BLOCK", 256):
        yield


def test_the_first_keys_count_and_those_after_them_may_be_nan() -> None:
    q, k, v = _draw(2, 300, 515, 2)
    mask = np.arange(515) < np.array([[260], [515]])
    expected = _reference(q, k, v, mask)
    for array in (k, v):
        array[~mask] = np.nan
    np.testing.assert_allclose(_compute(q, k, v, mask), expected, atol=3e-6)


def test_any_keys_may_count_and_one_may_be_all() -> None:
    q, k, v = _draw(2, 128, 512, 1)
    mask = np.zeros((2, 512), bool)
    mask[0, 300], mask[1, [3, 77, 511]] = True, True
    k[~mask], v[~mask] = np.nan, np.inf
    expected = _reference(q, k, v, mask)
    np.testing.assert_allclose(_compute(q, k, v, mask), expected, atol=3e-6)
    np.testing.assert_allclose(expected[0], np.broadcast_to(v[0, 300], (128, WIDTH)))


def test_the_result_is_0_where_no_key_counts() -> None:
    q, k, v = _draw(2, 128, 256, 1)
    mask = np.array([[False], [True]]).repeat(256, axis=1)
    k[0], v[0] = np.nan, np.nan
    result = _compute(q, k, v, mask)
    assert (result[0] == 0).all()
    np.testing.assert_allclose(result[1:], _reference(q[1:], k[1:], v[1:], mask[1:]), atol=3e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_scores_may_be_300_or_minus_300(sign: int) -> None:
    q, k, v = _draw(1, 128, 384, 1)
    q, k = np.abs(q), np.abs(k) * sign
    q *= 300 / (np.abs(q @ k.swapaxes(1, 2)).max() / np.sqrt(WIDTH))
    mask = np.arange(384)[None] < 381
    scores = q @ k.swapaxes(1, 2) / np.sqrt(WIDTH)
    assert 299 < np.abs(scores).max() < 301
    # A float32 score of 300 is rounded by 3e-5, and each factor of its products by half of that.
    np.testing.assert_allclose(_compute(q, k, v, mask), _reference(q, k, v, mask), atol=2e-4)


def test_the_parts_of_a_block_of_queries_are_computed_one_after_another() -> None:
    """There are three of them. All keys of the first block count, and some of the second."""
    q, k, v = _draw(1, 384, 700, 1)
    mask = np.arange(700)[None] < 650
    expected = _reference(q, k, v, mask)
    k[~mask], v[~mask] = np.nan, np.nan
    with (
        patch.object(wide_attention_kernel, "_SMALL_BLOCK", 384),
        patch.object(wide_attention_kernel, "_PART", 128),
    ):
        assert block_length(384, jnp.float32) == block_length(700, jnp.float32) == 384
        np.testing.assert_allclose(_compute(q, k, v, mask), expected, atol=3e-6)


def test_in_bfloat16_only_operands_and_results_are_rounded() -> None:
    q, k, v = (np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in _draw(1, 128, 515, 2))
    mask = np.arange(515)[None] < 260
    expected = _reference(q, k, v, mask)
    computed = _compute(q, k, v, mask, jnp.bfloat16)
    # Rounding the result changes it by 0.0018; with rounded scores 0.0033 would be measured.
    np.testing.assert_allclose(computed, expected, atol=2.5e-3)


def test_without_a_mask_all_keys_count() -> None:
    q, k, v = _draw(1, 256, 384, 2)
    everything = np.ones((1, 384), bool)
    np.testing.assert_allclose(_compute(q, k, v, None), _reference(q, k, v, everything), atol=3e-6)


def test_blocks_are_few_and_have_little_to_spare() -> None:
    """4,352 tokens, an image and a text of 256, have 17 blocks without anything to spare. They
    would take longer than four of 1,152."""
    lengths = (128, 130, 1000, 1536, 4096, 4128, 4352, 4608)
    expected = [128, 256, 1024, 768, 1024, 1152, 1152, 1152]
    assert [best_block(length, 1152) for length in lengths] == expected


@pytest.mark.parametrize("model", [1, 2])
def test_the_kernel_is_split_over_devices_by_rows_or_by_heads(model: int) -> None:
    # It runs in its own process. With two threads, one for each device, the interpreter waits for
    # itself, and JAX has as many threads as there are virtual devices.
    subprocess.run(
        [sys.executable, Path(__file__).with_name("flash_on_two_devices.py"), str(model), "wide"],
        env={**os.environ, **FLAGS},
        check=True,
        timeout=900,
    )
