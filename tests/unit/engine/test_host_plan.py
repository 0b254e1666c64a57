"""A plan needs neither devices nor weights, and agrees with what a worker would load."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from imagefleet.shared.errors import ConfigurationError
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.loading.host_plan import BatchPlan, plan_host
from imagefleet.worker.engine.loading.memory_need import memory_need
from imagefleet.worker.engine.loading.time_estimate import TimeEstimate
from imagefleet.worker.engine.networks.matmul_flops import matmul_flops
from imagefleet.worker.engine.placement.memory_check import Workload
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.placement.tpu_hosts import TPU_HOSTS, TpuHost
from tests.unit.engine.parity import FOLDER, Oracle
from tools.parity.published import PUBLISHED
from tools.tpu.models import SHAPES, model_of, write_configs

FLOAT32 = np.dtype(np.float32)
BFLOAT16 = np.dtype(jnp.bfloat16)
OLDER = FOLDER / "older"


def test_products_count_two_flops_a_term_and_loops_by_their_trips() -> None:
    square, images = jnp.zeros((8, 8)), jnp.zeros((2, 16, 16, 6))
    kernel = jnp.zeros((3, 3, 3, 4))  # two groups of three channels

    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x,
            kernel,
            (2, 2),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=2,
        )

    def five_times(x: jax.Array) -> jax.Array:
        rows: jax.Array = jax.lax.map(jax.jit(lambda row: row @ x), jnp.zeros((5, 8)))
        return rows

    def choose(x: jax.Array) -> jax.Array:
        chosen: jax.Array = jax.lax.cond(x[0, 0] > 0, lambda: x @ x, lambda: x @ x @ x)
        return chosen

    assert matmul_flops(choose, square) == 2 * (2 * 8 * 8 * 8)  # of the longer branch
    assert matmul_flops(jnp.matmul, square, square) == 2 * 8 * 8 * 8
    assert matmul_flops(convolve, images, kernel) == 2 * (2 * 8 * 8 * 4) * (3 * 3 * 3)
    assert matmul_flops(five_times, square) == 5 * 2 * 8 * 8
    assert matmul_flops(jnp.exp, square) == 0


def test_the_flops_of_stable_diffusion_are_those_of_its_layers() -> None:
    model = model_of("sd14")
    flops = model.flops(model.networks(), SHAPES["sd14"])
    # Counted by hand, layer by layer: two calls of the UNet; the decoder and the safety checker. Of
    # each pixel that is upsampled, 16 products are computed instead of 36.
    upsampled = 2 * 2 * (8**2 * 1280**2 + 16**2 * 1280**2 + 32**2 * 640**2)
    assert flops.step == pytest.approx(1.6006e12 - 20 * upsampled, rel=1e-3)
    upsampled = 2 * (64**2 * 512**2 + 128**2 * 512**2 + 256**2 * 256**2)
    assert flops.decode == pytest.approx(2.5145e12 + 0.1620e12 - 20 * upsampled, rel=5e-3)


@pytest.mark.parametrize("model", [1, 2])
def test_the_weights_take_the_bytes_that_a_device_then_holds(oracle: Oracle, model: int) -> None:
    workload = Workload(dtype=FLOAT32, platform="cpu", device_kind="cpu", model=model)
    need = memory_need(oracle.model, oracle.model.networks(), (), workload)
    placement = Placement.of(model, model)
    placed = jax.tree.map(
        lambda weight: jax.device_put(weight, placement.weight_sharding(weight.shape)),
        oracle.weights,
    )
    held = [weight.addressable_shards[0].data.nbytes for weight in jax.tree.leaves(placed)]
    assert need.total == need.weights == sum(held)


def test_a_plan_doubles_the_batch_of_each_mesh_until_it_does_not_fit() -> None:
    host = TPU_HOSTS["v2-8"]
    planned = plan_host(
        OLDER, host, shapes=[Shape(height=2048, width=2048)], max_per_device_batch=8
    )
    by_model: dict[int, list[BatchPlan]] = {}
    for batch in planned.batches:
        by_model.setdefault(batch.model, []).append(batch)
    assert list(by_model) == [1, 2, 4, 8]
    for model, batches in by_model.items():
        sizes = [batch.per_device_batch for batch in batches]
        assert sizes == [1, 2, 4, 8][: len(sizes)]
        assert {batch.data for batch in batches} == {8 // model}
        assert all(batch.fits for batch in batches[:-1])
        assert batches[-1].fits == (batches[-1].need.total <= host.generation.memory_bytes)
        assert sizes[-1] == 8 or not batches[-1].fits


def test_stable_diffusion_in_float32_fits_v2_only_with_two_devices_a_copy(tmp_path: Path) -> None:
    write_configs(PUBLISHED["sd14"], tmp_path)
    planned = plan_host(
        tmp_path,
        TPU_HOSTS["v2-8"],
        shapes=[Shape(height=768, width=768)],
        dtype="float32",
        max_per_device_batch=1,
    )
    assert {batch.mesh: batch.fits for batch in planned.batches} == {
        "data=8,model=1": False,
        "data=4,model=2": True,
        "data=2,model=4": True,
        "data=1,model=8": True,
    }


COMPILED: Final[dict[str, tuple[dict[int, float], float]]] = {
    "sd14": ({1: 16.2, 4: 53.4}, 17.4),
    "sd21": ({}, 33.5),
    "sdxl": ({1: 90.0}, 59.5),
}
"""Milliseconds on v5e by the TPU compiler: of a step, by the images of a device, and of the
decoder. docs/tpu.md has their source."""


@pytest.mark.parametrize("name", COMPILED)
def test_the_times_of_a_plan_are_within_15_percent_of_the_compilers(name: str) -> None:
    times = TimeEstimate(generation=TPU_HOSTS["v5e-8"].generation, dtype=BFLOAT16)
    flops, (steps, decode) = (
        model_of(name).flops(model_of(name).networks(), SHAPES[name]),
        COMPILED[name],
    )
    assert times.step_seconds(replace(flops, peak_shares={})) is None
    for images, milliseconds in steps.items():
        assert times.step_seconds(flops, images) == pytest.approx(milliseconds / 1e3, rel=0.15)
    for count in (0, 1, 50) if steps else (0,):
        image = times.image_seconds(flops, count)
        assert image == pytest.approx((count * steps.get(1, 0) + decode) / 1e3, rel=0.15)


def test_a_plan_has_times_only_where_whole_copies_were_compiled(tmp_path: Path) -> None:
    write_configs(PUBLISHED["sd14"], tmp_path)
    plans = {
        (name, dtype): plan_host(tmp_path, TPU_HOSTS[name], dtype=dtype, max_per_device_batch=16)
        for name, dtype in (("v5e-4", "bfloat16"), ("v5e-4", "float32"), ("v6e-4", "bfloat16"))
    }
    shape = SHAPES["sd14"]
    timed = {
        (*key, batch.model, batch.per_device_batch)
        for key, planned in plans.items()
        for batch in planned.batches
        if batch.step_seconds[shape] is not None
    }
    # 16 images are a larger step than any that was compiled.
    assert timed == {("v5e-4", "bfloat16", 1, images) for images in (1, 2, 4, 8)}
    rates = {key: planned.images_per_second[shape] for key, planned in plans.items()}
    # A batch of 50 steps takes 837 ms by the compiler.
    assert rates.pop(("v5e-4", "bfloat16")) == pytest.approx(4 / 0.837, rel=0.15)
    assert set(rates.values()) == {None}


def test_errors_name_the_field_the_value_and_what_is_known() -> None:
    with pytest.raises(ConfigurationError, match=r"^--topology='v9-8' is unknown; choose v2-8"):
        TpuHost.named("v9-8")
    with pytest.raises(ConfigurationError, match="IMAGEFLEET_SHAPES: 65x64: height and width must"):
        plan_host(
            OLDER,
            TPU_HOSTS["v2-8"],
            shapes=[Shape(height=65, width=64)],
            max_per_device_batch=1,
        )


def test_each_further_chunk_of_prompts_needs_keys_and_values_of_every_layer() -> None:
    model, host = model_of("sdxl"), TpuHost.named("v5e-8")
    networks, bfloat16 = model.networks(), np.dtype(jnp.bfloat16)

    def workspace(chunks: int, per_device_batch: int) -> int:
        workload = Workload(
            dtype=bfloat16,
            platform="tpu",
            device_kind=host.generation.device_kind,
            per_device_batch=per_device_batch,
            prompt_chunks=chunks,
        )
        return memory_need(model, networks, [SHAPES["sdxl"]], workload).workspace

    # 10 layers of 640 channels and 60 of 1280; keys and values of 77 tokens of two prompts.
    chunk = (10 * 640 + 60 * 1280) * 2 * 77 * 2 * bfloat16.itemsize
    assert workspace(0, 1) == workspace(1, 1)
    assert workspace(3, 1) - workspace(1, 1) == 2 * chunk
    # With four images the step needs more than the decoder, and its scores of the text count too.
    assert 8 * chunk < workspace(3, 4) - workspace(1, 4) < 16 * chunk
