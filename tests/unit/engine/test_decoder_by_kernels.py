"""A decoder whose convolutions are kernels for TPU decodes as one without them.

Pallas' interpreter runs the kernels; memory that no one has written is NaN there.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.kernels import feature_map, large_convolution
from imagefleet.worker.engine.kernels.feature_map import FeatureMap
from imagefleet.worker.engine.networks.vae import Vae, VaeConfig

CONFIG = VaeConfig.from_json(
    {
        "block_out_channels": [64, 64],
        "down_block_types": ["DownEncoderBlock2D"] * 2,
        "up_block_types": ["UpDecoderBlock2D"] * 2,
        "latent_channels": 4,
    }
)


def _decode(latents: jax.Array, dtype: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    graph, state = nnx.split(nnx.eval_shape(lambda: Vae(CONFIG)))
    random = np.random.default_rng(0)

    def draw(weight: jax.ShapeDtypeStruct) -> jax.Array:
        # Biases and norms are as large as what they are added to, and all weights are bfloat16.
        scale = np.prod(weight.shape[:-1]) ** -0.5
        return jnp.asarray(scale * random.normal(size=weight.shape), jnp.bfloat16).astype(dtype)

    def decode(weights: Any, latents: jax.Array) -> jax.Array:
        vae: Vae = nnx.merge(graph, weights)
        return vae.decode(latents)

    weights = jax.tree.map(draw, nnx.to_pure_dict(state))
    result = jax.jit(decode)(weights, latents.astype(dtype))
    assert result.dtype == dtype
    return np.asarray(result, np.float32)


def test_the_decoder_of_kernels_is_as_near_to_float32_as_the_plain_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    latents = jnp.asarray(np.random.default_rng(1).normal(size=(1, 2, 64, 4)), jnp.bfloat16)
    exact, plain = (_decode(latents, dtype) for dtype in (jnp.float32, jnp.bfloat16))
    added_up = list[tuple[int, ...]]()

    def pixel_means(x: FeatureMap) -> feature_map.PixelMeans:
        if x.means is None:
            added_up.append(x.values.shape)
        return known_means(x)

    known_means = FeatureMap.pixel_means
    monkeypatch.setattr(FeatureMap, "pixel_means", pixel_means)
    monkeypatch.setattr(large_convolution, "_MEMORY_BYTES", {"cpu": 2**30})
    monkeypatch.setattr(large_convolution, "_MIN_PIXELS", 2 * 64)
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")):
        by_kernels = _decode(latents, jnp.bfloat16)
    # The last one has a width of 128, so that the kernel for narrow results computes it.
    # The first convolution and the attention are no kernels, so that the two blocks after them add
    # up their maps. All other norms take the sums of a kernel.
    assert added_up == [(1, 2, 64, 64)] * 2
    size = exact.std()
    errors = [np.abs(result - exact).mean() / size for result in (by_kernels, plain)]
    assert errors[0] < 1.1 * errors[1] < 0.05, errors
