"""All backends compute the same attention, and each platform gets one that it can run."""

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from numpy.typing import NDArray

from imagefleet.worker.engine.kernels.attention import (
    _by_query_blocks,
    attention,
    largest_block,
    query_block_count,
)
from imagefleet.worker.engine.kernels.attention_backend import (
    AttentionSpec,
    Backend,
    choose_backend,
)

Arrays = tuple[NDArray[np.float32], ...]

SELF = AttentionSpec(queries=4096, keys=4096, heads=8, head_dim=40, dtype=jnp.bfloat16)
"""The finest layer of Stable Diffusion 1 at 512x512."""
TEXT = replace(SELF, keys=77)
SMALL = replace(SELF, queries=64, keys=64)


def _random_arrays(*shapes: tuple[int, ...]) -> Arrays:
    draw = np.random.default_rng(0).standard_normal
    return tuple(draw(shape).astype(np.float32) for shape in shapes)


def _spec(
    queries: int, keys: int, heads: int, head_dim: int, causal: bool = False
) -> AttentionSpec:
    return AttentionSpec(
        queries=queries, keys=keys, heads=heads, head_dim=head_dim, dtype=np.float32, causal=causal
    )


def _reference(arrays: Arrays, heads: int, causal: bool) -> NDArray[np.float32]:
    q, k, v = arrays
    expected, width = np.empty_like(q), q.shape[2] // heads
    for batch, head in itertools.product(range(q.shape[0]), range(heads)):
        part = slice(width * head, width * (head + 1))
        scores = q[batch, :, part] @ k[batch, :, part].T / np.sqrt(width)
        if causal:
            scores[np.triu_indices(q.shape[1], 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        expected[batch, :, part] = weights / weights.sum(axis=1, keepdims=True) @ v[batch, :, part]
    return expected


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", [Backend.FOLDED, Backend.BY_HEAD])
def test_attention_by_products_is_the_formula(backend: Backend, causal: bool) -> None:
    arrays = _random_arrays(*[(2, 6, 12)] * 3)
    result = attention(*map(jnp.asarray, arrays), heads=3, causal=causal, backend=backend)
    np.testing.assert_allclose(result, _reference(arrays, 3, causal), atol=2e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("limit", [1, 4 * 3 * 6 * 2, 4 * 3 * 6 * 4])
def test_query_blocks_of_any_size_give_the_same_result(limit: int, causal: bool) -> None:
    arrays = _random_arrays(*[(2, 6, 12)] * 3)
    q, k, v = map(jnp.asarray, arrays)
    result = _by_query_blocks(q, k, v, _spec(6, 6, 3, 4, causal), limit)
    np.testing.assert_allclose(result, _reference(arrays, 3, causal), atol=1e-6)


@pytest.mark.parametrize("limit", [10**9, 4 * 3 * 6 * 2])
def test_masked_keys_do_not_count(limit: int) -> None:
    q, k, v = _random_arrays((2, 6, 12), (2, 5, 12), (2, 5, 12))
    mask = np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], bool)
    spec = _spec(6, 5, 3, 4)
    for result in (
        _by_query_blocks(
            jnp.asarray(q), jnp.asarray(k), jnp.asarray(v), spec, limit, jnp.asarray(mask)
        ),
        *(
            attention(
                *map(jnp.asarray, (q, k, v)), heads=3, mask=jnp.asarray(mask), backend=backend
            )
            for backend in (Backend.FOLDED, Backend.BY_HEAD)
        ),
    ):
        for row, kept in enumerate(mask):
            arrays = (q[row : row + 1], k[row : row + 1, kept], v[row : row + 1, kept])
            np.testing.assert_allclose(
                result[row : row + 1], _reference(arrays, 3, False), atol=1e-6
            )


def test_only_the_kernel_for_wide_heads_gets_a_mask() -> None:
    wide = replace(SELF, head_dim=128, masked=True)
    assert choose_backend("tpu", wide) is Backend.WIDE_HEADS
    assert choose_backend("gpu", wide) is not Backend.CUDNN
    for platform, kernel in (("tpu", Backend.FLASH), ("gpu", Backend.CUDNN)):
        assert choose_backend(platform, SELF) is kernel
        masked = choose_backend(platform, replace(SELF, masked=True))
        assert masked in (Backend.FOLDED, Backend.QUERY_BLOCKS)


def test_query_blocks_are_equal_and_their_scores_within_the_limit() -> None:
    for queries, limit in itertools.product((1, 7, 96, 4096), (1, 1000, 10**6, 10**9)):
        spec = _spec(queries, 77, 2, 8)
        count = query_block_count(spec, limit)
        assert queries % count == 0
        assert spec.score_bytes // count <= limit or count == queries


@pytest.mark.parametrize("head_dim", [40, 160])  # 160 is padded to 256
def test_the_tpu_kernel_agrees_with_matmuls_in_the_interpreter(head_dim: int) -> None:
    arrays = tuple(map(jnp.asarray, _random_arrays(*[(1, 256, 2 * head_dim)] * 3)))
    expected = attention(*arrays, heads=2, backend=Backend.FOLDED)
    with pltpu.force_tpu_interpret_mode():
        result = attention(*arrays, heads=2, backend=Backend.FLASH)
    np.testing.assert_allclose(result, expected, atol=3e-6)


def test_blocks_of_the_tpu_kernel_divide_the_length() -> None:
    assert [largest_block(length, 1024) for length in (128, 640, 2304, 4096)] == [
        128,
        640,
        768,
        1024,
    ]


@pytest.mark.parametrize("model", [1, 2])
def test_the_tpu_kernel_is_split_over_devices_by_rows_or_by_heads(model: int) -> None:
    # It runs in its own process: the interpreter needs as many free threads as there are devices.
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PYTHONPATH": os.getcwd()}
    subprocess.run(
        [sys.executable, Path(__file__).with_name("flash_on_two_devices.py"), str(model)],
        env={**os.environ, **flags},
        check=True,
        timeout=900,
    )


@pytest.mark.parametrize(
    ("platform", "spec", "expected"),
    [
        ("cpu", SELF, Backend.QUERY_BLOCKS),
        ("cpu", replace(SELF, queries=768, keys=768), Backend.BY_HEAD),
        ("cpu", SMALL, Backend.FOLDED),
        ("gpu", SELF, Backend.CUDNN),
        ("tpu", SELF, Backend.FLASH),
        ("gpu", TEXT, Backend.CUDNN),
        ("tpu", TEXT, Backend.FOLDED),  # 77 keys are not a multiple of 128
        ("gpu", replace(SMALL, dtype=np.float32), Backend.FOLDED),
        ("gpu", replace(SMALL, dtype=np.dtype("float16")), Backend.CUDNN),
        ("gpu", replace(SMALL, head_dim=160), Backend.FOLDED),
        ("gpu", replace(SMALL, head_dim=12), Backend.FOLDED),
        ("tpu", SMALL, Backend.FOLDED),
        ("tpu", replace(SELF, queries=256, keys=256), Backend.FLASH),
        ("tpu", replace(SELF, queries=256, keys=256, head_dim=160), Backend.FOLDED),
        ("tpu", replace(SELF, queries=1024, keys=1024, head_dim=160), Backend.FLASH),
        ("tpu", replace(SELF, queries=4608, keys=4608, head_dim=128), Backend.WIDE_HEADS),
        ("tpu", replace(SELF, queries=130, keys=129, head_dim=128), Backend.WIDE_HEADS),
        ("tpu", replace(SELF, queries=4429, keys=4429, head_dim=64), Backend.WIDE_HEADS),
        ("tpu", replace(SELF, queries=4096, keys=4096, head_dim=64), Backend.FLASH),
        ("tpu", replace(SELF, queries=1024, keys=231, head_dim=64), Backend.FOLDED),
        ("tpu", replace(SELF, queries=512, keys=77, head_dim=128), Backend.FOLDED),
        ("tpu", replace(SELF, head_dim=128, causal=True), Backend.FLASH),
        # float32 at 1024x1024: 8.6 GB of scores.
        ("gpu", _spec(16384, 16384, 8, 40), Backend.QUERY_BLOCKS),
        ("gpu", _spec(16384, 16384, 1, 512), Backend.QUERY_BLOCKS),
    ],
)
def test_each_platform_gets_a_backend_that_it_can_run(
    platform: str, spec: AttentionSpec, expected: Backend
) -> None:
    assert choose_backend(platform, spec) is expected
