"""The feed-forward kernel computes the layer's formula, and each device gets what suits it.

Pallas' interpreter runs the kernel here. tests/tpu compiles it.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.families.stable_diffusion import unet_transformer as transformer
from imagefleet.worker.engine.families.stable_diffusion.unet_transformer import FeedForward
from imagefleet.worker.engine.kernels import feed_forward, feed_forward_spec
from imagefleet.worker.engine.kernels.feed_forward import uses_kernel
from imagefleet.worker.engine.kernels.feed_forward_spec import block_pixels
from imagefleet.worker.engine.networks.blocks import LayerNorm
from imagefleet.worker.engine.placement.mesh import Placement

DEVICE = SimpleNamespace(platform="tpu", device_kind="TPU v6 lite")


def _draw(*shape: int, seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def test_the_kernel_is_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    channels = 128
    layer, norm = FeedForward(channels), LayerNorm(channels, 1e-5)
    norm.scale[...], norm.bias[...] = 1 + 0.1 * _draw(2, channels, seed=1)
    for seed, each in enumerate((layer.proj_in, layer.proj_out)):
        assert isinstance(each, nnx.Linear)
        assert each.bias is not None
        each.kernel[...] = _draw(*each.kernel.shape, seed=seed) / channels**0.5
        each.bias[...] = _draw(*each.bias.shape, seed=seed + 7)
    x = _draw(2, 512, channels, seed=3)
    expected = layer.add_to(x, norm)
    np.testing.assert_array_equal(expected, x + layer(norm(x)))
    monkeypatch.setattr(transformer, "uses_kernel", lambda x, hidden: True)
    monkeypatch.setattr(feed_forward_spec, "_MAX_BLOCK_VALUES", 256 * channels)  # four blocks
    with pltpu.force_tpu_interpret_mode():
        result = layer.add_to(x, norm)
    # GELU by tanh differs by 2.7e-5, and 512 hidden values are added up.
    np.testing.assert_allclose(result, expected, atol=3e-4)
    assert float(jnp.abs(expected - x).max()) > 1


def test_blocks_divide_the_pixels() -> None:
    assert block_pixels(2048, 1280) == 1024
    assert block_pixels(8192, 640) == 2048
    assert block_pixels(2 * 96 * 96, 640) == 2048
    assert block_pixels(8 * 4096, 320) == 2048  # more would not fit beside the hidden values
    assert block_pixels(2 * 24 * 24, 1280) == 576
    assert block_pixels(77, 640) == 0


def test_v5e_and_v6e_use_the_kernel_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def uses(length: int, channels: int, dtype: type = jnp.bfloat16) -> bool:
        return uses_kernel(jnp.zeros((2, length, channels), dtype), 4 * channels)

    assert not uses(1024, 1280)  # on CPU
    monkeypatch.setattr(feed_forward, "target_device", lambda: DEVICE)
    assert uses(1024, 1280)
    assert uses(4096, 640)
    assert not uses(4096, 320)  # 320 channels do not fill their lanes
    assert not uses(64, 1280)  # 128 pixels: reading the weights takes longer
    assert not uses(1024, 1280, jnp.float32)
    with jax.set_mesh(Placement.of(2, 2).mesh):
        assert not uses(1024, 1280)  # the devices share one copy of the weights
    monkeypatch.setattr(DEVICE, "device_kind", "TPU v5 lite")
    assert uses(4096, 320)
    assert uses(1024, 640)
    assert uses(256, 1280)
    assert not uses(64, 1280)
