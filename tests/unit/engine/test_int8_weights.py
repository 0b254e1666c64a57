"""Weights of 8 bits: what they hold, where they are, and what networks compute with them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from numpy.typing import NDArray

from imagefleet.shared.errors import ConfigurationError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.int8_weights import INT8, SCALES, Int8Matrix
from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.families.z_image.transformer import Transformer
from imagefleet.worker.engine.families.z_image.transformer_config import TransformerConfig
from imagefleet.worker.engine.loading.abstract_weights import abstract_weights
from imagefleet.worker.engine.loading.build_engine import load_networks
from imagefleet.worker.engine.loading.memory_need import memory_need
from imagefleet.worker.engine.loading.read_model import read_supported
from imagefleet.worker.engine.networks.abstract_network import abstract_network
from imagefleet.worker.engine.networks.blocks import linear
from imagefleet.worker.engine.networks.int8_layers import Int8Linear
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.schedulers.registry import step_table
from tests.unit.engine.flow_family import (
    FLUX1,
    FLUX2_KLEIN,
    SLOTS,
    STABLE_DIFFUSION_3,
    Z_IMAGE,
    FlowFamily,
)
from tests.unit.engine.flow_parity import FlowOracle
from tests.unit.engine.parity import FLOAT32_ON_CPU, FOLDER, worst
from tests.unit.engine.stream_runs import run_stream

DTYPES: Final = pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
FAMILIES: Final = pytest.mark.parametrize(
    "family", [FLUX2_KLEIN, Z_IMAGE, STABLE_DIFFUSION_3], ids=lambda family: family.title
)
OPTIONS: Final = ModelOptions(int8_weights=True)
LEVELS: Final = (6.0, 64)
"""Images are on average and at most this far from those of diffusers, in levels of 255. With the
weights of the file they are at most one level off."""


def _matrix(channels_in: int = 96, channels_out: int = 40) -> NDArray[np.float32]:
    """Return a matrix whose channels have other sizes, the last of them zeros."""
    numbers = np.random.default_rng(0).normal(size=(channels_in, channels_out))
    sizes = np.logspace(-6, 3, channels_out)
    sizes[-1] = 0
    return (numbers * sizes).astype(np.float32)


@DTYPES
def test_integers_times_scales_are_the_matrix_within_half_a_scale(dtype: Any) -> None:
    matrix = _matrix()
    rounded = Int8Matrix(lambda index: matrix[index], np.dtype(dtype))
    whole = (slice(None), slice(None))
    integers, scales = rounded.integers(whole), rounded.scales(whole[1:]).astype(np.float32)
    assert (integers.dtype, np.abs(integers.astype(int)).max()) == (INT8, 127)
    assert (np.abs(integers * scales - matrix) <= 0.5001 * scales).all()
    assert np.isfinite(scales).all()
    part = (slice(32, 64), slice(8, 16))
    assert np.array_equal(rounded.integers(part), integers[part])


@DTYPES
def test_a_layer_computes_with_the_rounded_matrix_in_the_dtype_of_its_input(dtype: Any) -> None:
    layer = linear(96, 40)
    rounded = Int8Matrix(lambda index: _matrix()[index], np.dtype(dtype))
    whole = (slice(None), slice(None))
    of_8_bits = Int8Linear(layer)
    of_8_bits.kernel.set_value(jnp.asarray(rounded.integers(whole)))
    of_8_bits.scales.set_value(jnp.asarray(rounded.scales(whole[1:])))
    of_8_bits.bias = nnx.Param(jnp.ones(40, dtype))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 5, 96)), dtype)
    result = of_8_bits(x)
    matrix = rounded.integers(whole) * rounded.scales(whole[1:]).astype(np.float64)
    assert result.dtype == dtype
    expected = np.asarray(x, np.float64) @ matrix + 1
    assert worst(result, expected) < (1e-6 if dtype == np.float32 else 1e-2)


@pytest.mark.parametrize(
    "family",
    [FLUX2_KLEIN, Z_IMAGE, FLUX1, STABLE_DIFFUSION_3],
    ids=lambda family: family.title,
)
def test_devices_hold_what_the_memory_check_counts_split_or_whole(
    family: FlowFamily, tmp_path: Path
) -> None:
    files = CheckpointFiles(family.write(tmp_path))
    model = read_supported(files, OPTIONS)
    _, whole = load_networks(files, model, Placement.of(1), FLOAT32_ON_CPU)
    for devices in (1, 2):
        workload, placement = replace(FLOAT32_ON_CPU, model=devices), Placement.of(devices, devices)
        _, weights = load_networks(files, model, placement, workload)
        held = [each.addressable_shards[0].data.nbytes for each in jax.tree.leaves(weights)]
        assert memory_need(model, model.networks(), (), workload).weights == sum(held)
        jax.tree.map(np.testing.assert_array_equal, weights, whole)
        dtype = np.dtype(np.float32)
        _, described = model.assemble(
            model.networks(), abstract_weights(model.networks(), placement, dtype), dtype
        )
        assert _described(weights) == _described(described)
    blocks = [each for each in jax.tree.leaves((whole.text, whole.denoiser)) if each.dtype == INT8]
    assert len(blocks) > 20
    assert not any(each.dtype == INT8 for each in jax.tree.leaves(whole.vae))


def _described(weights: Any) -> Any:
    return jax.tree.map(lambda each: (each.shape, str(each.dtype), each.sharding.spec), weights)


def test_the_blocks_of_a_published_transformer_take_half_of_their_bytes(tmp_path: Path) -> None:
    Z_IMAGE.case.write_configs(tmp_path)
    model = read_supported(CheckpointFiles(tmp_path), OPTIONS)
    config = TransformerConfig.from_json({})
    networks = {each: abstract_network(Transformer, config, int8=each) for each in (False, True)}
    workload = replace(FLOAT32_ON_CPU, dtype=np.dtype(ml_dtypes.bfloat16))
    [rounded, whole] = [
        memory_need(model, {"transformer": networks[each]}, (), workload).weights
        for each in (True, False)
    ]
    assert whole == pytest.approx(12.31e9, rel=1e-3)
    assert rounded == pytest.approx(6.18e9, rel=1e-2)


def test_a_family_without_such_weights_refuses_them() -> None:
    with pytest.raises(ConfigurationError, match=r"^IMAGEFLEET_INT8_WEIGHTS: models of Stable"):
        read_supported(CheckpointFiles(FOLDER / "older"), OPTIONS)


@FAMILIES
def test_images_are_those_of_the_rounded_weights_and_near_those_of_diffusers(
    family: FlowFamily, tmp_path: Path
) -> None:
    folder = family.write(tmp_path)
    plain = FlowOracle.read(folder, family.shape)
    files = CheckpointFiles(folder)
    model = read_supported(files, OPTIONS)
    programs, weights = load_networks(files, model, Placement.of(1), FLOAT32_ON_CPU)
    of_8_bits = replace(plain, model=model, programs=programs, weights=weights)
    rounded = replace(
        plain,
        weights=weights._replace(
            text=tuple(map(_multiplied, weights.text)), denoiser=_multiplied(weights.denoiser)
        ),
    )
    table = step_table("euler", model.noise_schedule(family.shape), family.case.STEPS)
    pairs = list(zip(family.case.NEGATIVES, family.case.PROMPTS, strict=True))
    guidance = family.case.GUIDANCES[-1]
    ours, same = (
        each.images(pairs, table, family.answers["noise"], guidance)
        for each in (of_8_bits, rounded)
    )
    assert np.abs(ours.astype(int) - same).max() <= 1
    _check_near(ours, family.answers[f"image|{guidance}"])


@FAMILIES
def test_jobs_add_their_lora_to_weights_that_devices_split(
    family: FlowFamily, tmp_path: Path
) -> None:
    folder = family.write_with_loras(tmp_path / "model")
    options = replace(OPTIONS, job_loras=family.lora_options(tmp_path))
    with family.engine(folder, 2, options) as engine:
        (stream,) = engine.open_streams()
        specs = {**family.specs(), **family.lora_specs()}
        images = run_stream(stream, family.shape, SLOTS, list(specs.values()))
        assert engine.recompiles == 0
    for name, image in zip(specs, images, strict=True):
        _check_near(image, family.answers[name][0])


def _check_near(images: NDArray[Any], theirs: NDArray[Any]) -> None:
    difference = np.abs(images.astype(int) - theirs)
    mean, most = LEVELS
    assert difference.any()
    assert difference.mean() <= mean
    assert difference.max() <= most


def _multiplied(params: Mapping[Any, Any]) -> Params:
    """Return parameters with matrices in float32 in place of integers and scales."""
    if SCALES in params:
        matrix = params["kernel"].astype(jnp.float32) * params[SCALES]
        others = {name: each for name, each in params.items() if name != SCALES}
        return {**others, "kernel": matrix}
    return {
        name: _multiplied(each) if isinstance(each, Mapping) else each
        for name, each in params.items()
    }
