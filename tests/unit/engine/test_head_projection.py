"""The kernel normalises pixels and projects them to packed heads, where it is the faster way.

Pallas' interpreter runs the kernel here. tests/tpu compiles it.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.kernels import head_projection
from imagefleet.worker.engine.kernels.head_projection import project_heads, projects_by_kernel
from imagefleet.worker.engine.kernels.head_projection_spec import HeadProjection, LowRank
from imagefleet.worker.engine.placement.mesh import Placement

ROUNDING = 2.0**-8


def _draw(*shape: int, seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.bfloat16)


def _double(x: jax.Array) -> np.ndarray:
    return np.asarray(x.astype(jnp.float32), np.float64)


@pytest.mark.parametrize(
    ("mean", "lora_columns"),
    [(0, 0), (30, 0), (0, 12)],
    ids=["centred pixels", "pixels far from zero", "LoRA beside the first"],
)
def test_the_kernel_is_near_float64(mean: float, lora_columns: int) -> None:
    channels, epsilon = 96, 1e-5
    x, scale, shift = _draw(2, 1536, channels, seed=0) + mean, *_draw(2, channels, seed=1)
    x = x.astype(jnp.bfloat16)
    matrices = [_draw(channels, 128, seed=seed) / channels**0.5 for seed in (2, 3)]
    down, up = _draw(channels, lora_columns, seed=4) / 10, _draw(lora_columns, 128, seed=5)
    of_images = _draw(2, lora_columns, seed=6).astype(jnp.float32)
    lora, scales = (LowRank(down=down, up=up), of_images) if lora_columns else (None, None)
    projections = [
        HeadProjection(matrix=matrices[0], lora=lora, is_turned=True, scale=0.3),
        HeadProjection(matrix=matrices[1], is_turned=False),
    ]
    with pltpu.force_tpu_interpret_mode():  # two blocks of 768 pixels for each image
        turned, straight = project_heads(
            x, (scale, shift), projections, [scales, None], epsilon=epsilon
        )
    assert (turned.shape, straight.shape) == ((2, 128, 1536), (2, 1536, 128))
    wide = _double(x)
    centred = wide - wide.mean(-1, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(-1, keepdims=True) + epsilon)
    normalized = centred / deviation * _double(scale) + _double(shift)
    added = _double(down) * _double(of_images)[:, None] @ _double(up)  # one matrix for each image
    results = (_double(turned).swapaxes(1, 2) / 0.3, _double(straight))
    wanted = (_double(matrices[0]) + added, _double(matrices[1]))
    for result, weights in zip(results, wanted, strict=True):
        # Rounded are the normalised pixels, of which 96 are added up, and the result.
        terms = np.abs(normalized) @ np.abs(weights)
        error = np.abs(result - normalized @ weights)
        assert (error <= ROUNDING * terms).all()


def test_v5e_uses_the_kernel_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    x = jnp.zeros((2, 1024, 320), jnp.bfloat16)
    assert not projects_by_kernel(x)  # on CPU
    device = SimpleNamespace(device_kind="TPU v5 lite")
    monkeypatch.setattr(head_projection, "target_device", lambda: device)
    assert projects_by_kernel(x)
    assert projects_by_kernel(x, 128)
    assert not projects_by_kernel(x, 129)
    assert not projects_by_kernel(jnp.zeros((2, 1024, 640), jnp.bfloat16))
    assert not projects_by_kernel(x.astype(jnp.float32))
    with jax.set_mesh(Placement.of(2, 2).mesh):
        assert not projects_by_kernel(x)  # each device would compute all heads
    device.device_kind = "TPU v6 lite"
    assert not projects_by_kernel(x)
