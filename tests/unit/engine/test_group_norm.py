"""The norm of TPUs, which reads a map once, computes what the centred norm computes."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from imagefleet.worker.engine.models import blocks


@pytest.mark.parametrize("mean", [0, 10], ids=["centred values", "values far from zero"])
def test_both_norms_compute_the_same(mean: float, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    norm = blocks.GroupNorm(32, groups=4, epsilon=1e-5)
    norm.scale[...], norm.bias[...] = jnp.asarray(random.normal(1, 0.2, (2, 32)), jnp.float32)
    x = jnp.asarray(random.normal(mean, 2, (2, 16, 16, 32)), jnp.float32)
    exact, centred = norm(x), norm(x.astype(jnp.bfloat16))
    monkeypatch.setattr(blocks, "target_device", lambda: SimpleNamespace(platform="tpu"))
    one_pass = norm(x.astype(jnp.bfloat16))
    assert one_pass.dtype == jnp.bfloat16
    # Between 4 and 8, neighbours in bfloat16 are 2^-5 apart.
    difference = np.abs(one_pass.astype(jnp.float32) - centred.astype(jnp.float32))
    assert float(difference.max()) <= 2**-5
    np.testing.assert_array_equal(norm(x), exact)  # float32 stays centred on TPU, too
