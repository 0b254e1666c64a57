"""What blocks compute in another way on TPUs is what they compute elsewhere."""

from collections.abc import Callable
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from imagefleet.worker.engine.kernels.convolution import upsample
from imagefleet.worker.engine.kernels.feature_map import FeatureMap, PixelMeans
from imagefleet.worker.engine.networks import blocks
from imagefleet.worker.engine.networks.column_parts import project_joined, project_parts
from imagefleet.worker.engine.networks.modulation import project_time
from imagefleet.worker.engine.networks.token_rows import in_rows
from imagefleet.worker.engine.placement import mesh
from imagefleet.worker.engine.placement.mesh import Placement


def _use_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "target_device", lambda: SimpleNamespace(platform="tpu"))


GROUP_NORM = blocks.GroupNorm(32, groups=4, epsilon=1e-5)
LAYER_NORM = blocks.LayerNorm(32, epsilon=1e-5)


@pytest.mark.parametrize(
    ("layer", "norm"),
    [(GROUP_NORM, lambda x: GROUP_NORM(FeatureMap(x))), (LAYER_NORM, LAYER_NORM)],
    ids=["group norm", "layer norm"],
)
@pytest.mark.parametrize("mean", [0, 10], ids=["centred values", "values far from zero"])
def test_norms_that_read_once_are_those_that_are_centred(
    mean: float,
    layer: blocks.GroupNorm | blocks.LayerNorm,
    norm: Callable[[jax.Array], jax.Array],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(0)
    layer.scale[...], layer.bias[...] = jnp.asarray(random.normal(1, 0.2, (2, 32)), jnp.float32)
    x = jnp.asarray(random.normal(mean, 2, (2, 16, 16, 32)), jnp.float32)
    exact, centred = norm(x), norm(x.astype(jnp.bfloat16))
    _use_tpu(monkeypatch)
    one_pass = norm(x.astype(jnp.bfloat16))
    assert one_pass.dtype == jnp.bfloat16
    # Between 4 and 8, neighbours in bfloat16 are 2^-5 apart.
    difference = np.abs(one_pass.astype(jnp.float32) - centred.astype(jnp.float32))
    assert float(difference.max()) <= 2**-5
    np.testing.assert_array_equal(norm(x), exact)  # float32 stays centred on TPU, too


def test_tokens_with_a_few_large_channels_are_normalized_as_near_to_float64_in_one_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Transformers of images have channels that are hundreds of times larger than the others."""
    random = np.random.default_rng(0)
    tokens = random.normal(0.1, 1, (64, 3072)) * np.where(np.arange(3072) % 1000 == 7, 500, 1)
    x = jnp.asarray(tokens, jnp.bfloat16)
    exact = np.asarray(x, np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-6)
    centred = blocks.normalize(x, 1e-6)
    _use_tpu(monkeypatch)
    one_pass = blocks.normalize(x, 1e-6)
    errors = [
        np.abs(np.asarray(each, np.float64) / exact - 1).max() for each in (one_pass, centred)
    ]
    assert errors[0] <= 2**-8  # one rounding to bfloat16
    assert errors[0] == pytest.approx(errors[1], rel=0.01)


def test_the_matrix_unit_multiplies_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    layer = blocks.linear(16, 24, use_bias=False)
    layer.kernel[...] = jnp.asarray(random.normal(size=(16, 24)), jnp.bfloat16)
    time = jnp.asarray(random.normal(size=(2, 16)), jnp.bfloat16)
    elsewhere = project_time(layer, time)
    _use_tpu(monkeypatch)
    assert "[2,8,24] = dot_general" in str(jax.make_jaxpr(lambda x: project_time(layer, x))(time))
    np.testing.assert_array_equal(project_time(layer, time), elsewhere)
    assert elsewhere.shape == (2, 1, 24)


def test_tokens_are_kept_in_rows_on_tpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    x = jnp.arange(24, dtype=jnp.bfloat16).reshape(2, 3, 4)
    assert in_rows(x) is x
    _use_tpu(monkeypatch)
    kept = jax.jit(in_rows)
    assert "LayoutConstraint" in kept.lower(x).as_text()
    np.testing.assert_array_equal(kept(x), x)


def test_the_norm_of_joined_maps_takes_the_means_of_its_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    norm = blocks.GroupNorm(32, groups=4, epsilon=1e-5)
    random = np.random.default_rng(0)
    # The third group of 8 channels has some of both parts.
    parts = [
        jnp.asarray(random.normal(mean, 2, (2, 8, 8, channels)), jnp.bfloat16)
        for mean, channels in ((0, 20), (3, 12))
    ]
    x = FeatureMap(jnp.concatenate(parts, axis=-1))
    _use_tpu(monkeypatch)
    joined = FeatureMap.join(*map(FeatureMap, parts))
    np.testing.assert_array_equal(norm(joined), norm(x))
    wrong = PixelMeans(*(means + 1 for means in FeatureMap(parts[1]).pixel_means()))
    other = FeatureMap.join(FeatureMap(parts[0]), FeatureMap(parts[1], wrong))
    assert (norm(other)[..., 24:] != norm(x)[..., 24:]).any()
    np.testing.assert_array_equal(norm(other)[..., :16], norm(x)[..., :16])


def test_gelu_by_tanh_is_as_close_as_its_docstring_says() -> None:
    x = jnp.linspace(-20, 20, 100_001, dtype=jnp.float32)
    exact = jax.nn.gelu(x, approximate=False)
    np.testing.assert_allclose(blocks.gelu_by_tanh(x), exact, atol=2.7e-5, rtol=1e-6)


def test_only_bfloat16_on_tpu_gets_gelu_by_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    x = jnp.linspace(-6, 6, 1001, dtype=jnp.float32)
    half = x.astype(jnp.bfloat16)
    exact = blocks.gelu(x)
    _use_tpu(monkeypatch)
    np.testing.assert_array_equal(blocks.gelu(x), exact)
    rounded = blocks.gelu_by_tanh(half.astype(jnp.float32)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(blocks.gelu(half), rounded)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_upsampling_repeats_pixels(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 16, 32)), dtype)
    expected = np.asarray(x).repeat(2, axis=1).repeat(2, axis=2)
    np.testing.assert_array_equal(upsample(x), expected)
    _use_tpu(monkeypatch)
    np.testing.assert_array_equal(upsample(x), expected)


def test_parts_of_a_layer_are_products_of_their_own_on_tpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(0)
    layer = blocks.linear(16, 24, use_bias=False)
    layer.kernel[...] = jnp.asarray(random.normal(size=(16, 24)), jnp.bfloat16)
    x = jnp.asarray(random.normal(size=(2, 4, 16)), jnp.bfloat16)

    def products() -> int:
        parts = jax.make_jaxpr(lambda x: project_parts(layer, x, [8, 12]))(x)
        return str(parts).count("dot_general")

    whole, before = project_parts(layer, x, [8, 12]), products()
    _use_tpu(monkeypatch)
    in_parts, after = project_parts(layer, x, [8, 12]), products()
    assert (before, after) == (1, 3)
    assert [part.shape[-1] for part in in_parts] == [8, 4, 12]
    joined = jnp.concatenate(in_parts, -1)
    np.testing.assert_allclose(joined, jnp.concatenate(whole, -1), rtol=1e-5, atol=1e-6)


def test_devices_that_share_weights_add_up_what_they_have_of_joined_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(0)
    layer = blocks.linear(24, 16, use_bias=False)
    layer.kernel[...] = jnp.asarray(random.normal(size=(24, 16)), jnp.float32)
    parts = [jnp.asarray(random.normal(size=(2, 4, n)), jnp.bfloat16) for n in (8, 16)]
    whole = project_joined(layer, *parts)
    _use_tpu(monkeypatch)
    with jax.set_mesh(Placement.of(2, model=2).mesh):
        run = jax.jit(lambda *parts: project_joined(layer, *parts))
        added_up, text = run(*parts), run.lower(*parts).as_text()
    assert text.count("all_reduce") == 1
    np.testing.assert_allclose(added_up, whole, atol=0.1)  # 14.7 in bfloat16 has neighbours at 0.06
