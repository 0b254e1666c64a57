"""Every backend computes the same attention."""

import jax
import numpy as np
import pytest

from worker.engine.attention import Backend, attention


@pytest.mark.parametrize("causal", [False, True])
def test_backends_agree_with_the_formula(causal: bool) -> None:
    draw = np.random.default_rng(0).standard_normal
    q, k, v = (draw((2, 5, 12)).astype(np.float32) for _ in range(3))
    expected = np.empty_like(q)
    for batch in range(2):
        for head in range(3):
            part = slice(4 * head, 4 * head + 4)
            scores = q[batch, :, part] @ k[batch, :, part].T / 2
            if causal:
                scores[np.triu_indices(5, 1)] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            expected[batch, :, part] = weights @ v[batch, :, part]
    for backend in Backend:
        computed = jax.jit(
            lambda q, k, v, backend=backend: attention(
                q, k, v, heads=3, causal=causal, backend=backend
            )
        )(q, k, v)
        np.testing.assert_allclose(computed, expected, atol=2e-6)
