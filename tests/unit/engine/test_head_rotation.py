"""The kernel that normalises and rotates heads of 128 channels computes the layers' formula."""

from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.kernels import head_rotation_kernel
from imagefleet.worker.engine.kernels.head_rotation_kernel import rotate_heads
from imagefleet.worker.engine.networks.blocks import RmsNorm
from imagefleet.worker.engine.networks.rotary import Rotation, place_heads
from imagefleet.worker.engine.placement.mesh import Placement

HEADS, TOKENS, WIDTH, EPSILON = 2, 40, 128, 1e-5


@pytest.mark.parametrize(("rows", "model"), [(1, 1), (2, 1), (2, 2)])
def test_the_kernel_agrees_with_the_formula_in_the_interpreter(rows: int, model: int) -> None:
    """All rows share their angles, or each has its own. The last block of tokens is not full."""
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.standard_normal((2, TOKENS, HEADS * WIDTH)), jnp.float32)
    angles = draw.uniform(-300, 300, (rows, TOKENS, WIDTH // 2)).astype(np.float32)
    cosines, sines = map(jnp.asarray, Rotation.of_angles(angles))
    norm = RmsNorm(WIDTH, EPSILON)
    norm.scale[...] = jnp.asarray(draw.uniform(0.5, 2, WIDTH), jnp.float32)
    expected = place_heads(x, norm, Rotation(cosines, sines), heads=HEADS)
    with (
        patch.object(head_rotation_kernel, "_MAX_TOKENS", 16),
        pltpu.force_tpu_interpret_mode(),
        jax.set_mesh(Placement.of(2, model).mesh),
    ):
        result = rotate_heads(x, norm.scale[...], cosines, sines, heads=HEADS, epsilon=EPSILON)
    np.testing.assert_allclose(result, expected, atol=2e-6)
