"""Attention over packed heads is that of the formula, and each device gets what suits it.

Pallas' interpreter runs the kernel here. tests/tpu compiles it.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.checkpoint.job_loras import StackedFactors
from imagefleet.worker.engine.families.stable_diffusion import unet_transformer as transformer
from imagefleet.worker.engine.families.stable_diffusion.unet_transformer import Attention
from imagefleet.worker.engine.kernels import packed_attention, packed_attention_kernel
from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.kernels.attention_backend import Backend
from imagefleet.worker.engine.kernels.head_packing import HeadPacking
from imagefleet.worker.engine.kernels.packed_attention import attend_packed, find_packing
from imagefleet.worker.engine.networks.blocks import LayerNorm
from imagefleet.worker.engine.networks.lora_layers import LoraLayer
from imagefleet.worker.engine.placement.mesh import Placement

PACKINGS = (
    HeadPacking(heads=8, head_dim=40),  # Stable Diffusion 1: three heads in 128 lanes
    HeadPacking(heads=5, head_dim=64),  # Stable Diffusion 2: two, and half of the last lanes empty
)


def _draw(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.array(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def test_three_heads_of_40_lie_side_by_side_in_128_lanes() -> None:
    packed = PACKINGS[0].pack_lanes(jnp.arange(1, 321))
    assert packed.shape == (384,)
    lanes = np.asarray(packed).reshape(3, 128)
    np.testing.assert_array_equal(lanes[0, :120], np.arange(1, 121))
    np.testing.assert_array_equal(lanes[1, :120], np.arange(121, 241))
    np.testing.assert_array_equal(lanes[2, :80], np.arange(241, 321))
    assert not lanes[:, 120:].any()
    assert not lanes[2, 80:].any()


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(
    ("queries", "keys", "part", "chunk"),
    # One chunk, two blocks, two parts and four chunks, the tokens of a text.
    [(256, 256, 256, 256), (128, 2048, 128, 1024), (256, 512, 128, 128), (256, 77, 128, 256)],
)
def test_the_kernel_is_the_formula(
    packing: HeadPacking,
    queries: int,
    keys: int,
    part: int,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed_attention_kernel, "_PART_QUERIES", part)
    monkeypatch.setattr(packed_attention_kernel, "_CHUNK_KEYS", chunk)
    channels = packing.heads * packing.head_dim
    q, k, v = (_draw(2, n, channels, seed=n) for n in (queries, keys, keys))
    expected = attention(q, k, v, heads=packing.heads, backend=Backend.FOLDED)
    with pltpu.force_tpu_interpret_mode():
        scaled = packing.pack_lanes(q * packing.query_scale).mT
        result = attend_packed(scaled, packing.pack_lanes(k), packing.pack_rows(v).mT, packing)
    np.testing.assert_allclose(packing.unpack_rows(result.mT), expected, atol=6e-6)
    by_head = result.mT.reshape(2, queries, packing.heads, packing.rows_per_head)
    # Spare rows are finite, because the next product multiplies them with 0.
    np.testing.assert_allclose(by_head[..., packing.head_dim :], 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("packing", "has_lora", "by_kernel"),
    [
        (PACKINGS[0], False, False),
        (PACKINGS[0], False, True),
        (PACKINGS[1], False, True),
        (PACKINGS[0], True, True),
    ],
)
def test_a_layer_with_packed_heads_is_the_same_layer(
    packing: HeadPacking, has_lora: bool, by_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = packing.heads * packing.head_dim
    layer = Attention(channels, channels, packing.heads)
    for seed, name in enumerate(("to_q", "to_k", "to_v", "to_out")):
        linear = getattr(layer, name)
        linear.kernel[...] = _draw(channels, channels, seed=seed) / channels**0.5
        if linear.bias is not None:
            linear.bias[...] = _draw(channels, seed=4)
        if has_lora:
            factors = StackedFactors(
                down=_draw(channels, 4, seed=10 + seed) / channels**0.5,
                up=_draw(4, channels, seed=20 + seed) / 8,
            )
            scales = jnp.array([[0.5], [1.0]])  # of two slots with one row each
            setattr(layer, name, LoraLayer(linear, (0,) * 4, factors, scales))
    x, norm = _draw(2, 128, channels, seed=5), LayerNorm(channels, 1e-5)
    norm.scale[...], norm.bias[...] = 1 + 0.1 * _draw(2, channels, seed=7)
    expected = layer.attend_to_itself(x, norm)
    itself = layer.project_context(norm(x))
    np.testing.assert_array_equal(expected, layer(x, norm, itself))
    text = layer.project_context(_draw(2, 77, channels, seed=6))
    expected_of_text = layer(x, norm, text)
    masked = text._replace(mask=jnp.arange(77) < jnp.array([[77], [3]]))
    expected_of_mask = layer(x, norm, masked)
    monkeypatch.setattr(transformer, "find_packing", lambda x, keys, heads: packing)
    monkeypatch.setattr(transformer, "projects_by_kernel", lambda x, lora_columns: by_kernel)
    with pltpu.force_tpu_interpret_mode():
        result, of_text = layer.attend_to_itself(x, norm), layer(x, norm, text)
    np.testing.assert_allclose(result, expected, atol=5e-6)
    np.testing.assert_allclose(of_text, expected_of_text, atol=5e-6)
    # The kernel has no mask.
    np.testing.assert_array_equal(layer(x, norm, masked), expected_of_mask)


def test_a_tpu_packs_heads_that_fill_its_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    def packing_of(
        length: int, heads: int, head_dim: int, *, keys: int | None = None
    ) -> HeadPacking | None:
        x = jnp.zeros((1, length, heads * head_dim), jnp.bfloat16)
        return find_packing(x, keys=keys or length, heads=heads)

    assert packing_of(4096, 8, 40) is None  # on CPU
    monkeypatch.setattr(packed_attention, "target_device", lambda: SimpleNamespace(platform="tpu"))
    assert packing_of(4096, 8, 40) == PACKINGS[0]
    assert packing_of(9216, 5, 64) == PACKINGS[1]
    assert packing_of(4096, 8, 40, keys=77) == PACKINGS[0]
    assert packing_of(4096, 8, 40, keys=1000) is None  # too many for one block
    assert packing_of(1024, 8, 80) is None  # 1,024 lanes for 640 channels
    assert packing_of(256, 8, 160) is None  # wider than 128
    assert packing_of(64, 8, 40) is None  # 64 pixels are no whole block
    with jax.set_mesh(Placement.of(2, 2).mesh):  # two devices share one copy of the weights
        assert packing_of(4096, 20, 64) == HeadPacking(heads=20, head_dim=64, parts=2)
        assert packing_of(4096, 8, 40) is None  # 256 lanes for the 160 channels of a device
        assert packing_of(9216, 5, 64) is None  # five heads cannot be split


def test_each_device_has_tiles_of_its_own() -> None:
    packing = HeadPacking(heads=6, head_dim=64, parts=2)
    packed = np.asarray(packing.pack_lanes(jnp.arange(1, 385))).reshape(2, 2, 128)
    for part, numbers in zip(packed, (np.arange(1, 193), np.arange(193, 385)), strict=True):
        np.testing.assert_array_equal(part.reshape(-1)[:192], numbers)
        assert not part[1, 64:].any()
    assert packing.part == HeadPacking(heads=3, head_dim=64)


def test_the_kernel_is_split_over_devices_by_heads() -> None:
    # It runs in its own process. With two threads, one for each device, the interpreter waits for
    # itself, and JAX has as many threads as there are virtual devices.
    script = Path(__file__).with_name("flash_on_two_devices.py")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PYTHONPATH": os.getcwd()}
    subprocess.run(
        [sys.executable, script, "2", "packed"],
        env={**os.environ, **flags},
        check=True,
        timeout=900,
    )
