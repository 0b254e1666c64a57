"""Both ways to rotate pairs give the same numbers."""

import jax.numpy as jnp
import numpy as np

from imagefleet.worker.engine.networks.rotary import Rotation, rotate_by_partners, rotate_pairs


def test_pairs_are_rotated_in_bfloat16_as_complex_numbers_are_multiplied() -> None:
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.standard_normal((2, 5, 3, 8)), jnp.bfloat16)
    angles = draw.uniform(-300, 300, (5, 4))
    numbers = np.asarray(x, np.float64)
    pairs = (numbers[..., ::2] + 1j * numbers[..., 1::2]) * np.exp(1j * angles)[:, None]
    expected = np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)
    rotation = Rotation.of_angles(angles.astype(np.float32))
    for rotate in (rotate_by_partners, rotate_pairs):
        result = np.asarray(rotate(x, rotation), np.float64)
        np.testing.assert_allclose(result, expected, atol=2.0**-8, rtol=2.0**-8)
