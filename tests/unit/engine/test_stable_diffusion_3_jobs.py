"""Each job of Stable Diffusion 3 keeps its own image: alone, beside others, by its index, and in a
stream."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.jobs.attempt import plan_attempt
from tests.unit.engine.flow_family import STABLE_DIFFUSION_3
from tests.unit.engine.stream_runs import run_stream
from tools.parity.flow.stable_diffusion_3_loras import CASES

SHAPE: Final = STABLE_DIFFUSION_3.shape
SLOTS: Final = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return STABLE_DIFFUSION_3.write_with_loras(tmp_path_factory.mktemp("jobs") / "model")


def _load(folder: Path, **sizes: Any) -> DiffusionEngine:
    engine = load_engine(
        str(folder),
        shapes=[SHAPE],
        cache_dir=folder.parent / "cache",
        max_num_inference_steps=8,
        options=ModelOptions(job_loras=STABLE_DIFFUSION_3.lora_options(folder.parent)),
        **sizes,
    )
    assert isinstance(engine, DiffusionEngine)
    return engine


@pytest.fixture(scope="module")
def engine(folder: Path) -> DiffusionEngine:
    """Four devices with one slot each: only so are images bit-equal in any slot."""
    engine = _load(folder, devices=SLOTS, per_device_batch=1)
    engine.warm()
    return engine


def _specs() -> list[ImageSpec]:
    """Return one image for each slot: without guidance, with layers that its prompt skips, and with
    two mixtures of LoRA."""
    guided = replace(STABLE_DIFFUSION_3.spec(4.5), seed=7)
    loras = [tuple(sorted(CASES[case].items())) for case in ("two", "others")]
    return [
        replace(guided, guidance_scale=1.0),
        replace(guided, clip_skip=1, num_inference_steps=3),
        *(replace(guided, loras=each) for each in loras),
    ]


def test_jobs_share_a_batch_and_each_is_bit_equal_to_itself_alone(engine: DiffusionEngine) -> None:
    specs, before = _specs(), engine.recompiles
    together = engine.start_batch(specs, SHAPE).images()
    assert len({image.tobytes() for image in together}) == SLOTS
    for spec, image in zip(specs, together, strict=True):
        [alone] = engine.start_batch([spec], SHAPE).images()
        np.testing.assert_array_equal(alone, image)
    backwards = engine.start_batch(specs[::-1], SHAPE).images()[::-1]
    np.testing.assert_array_equal(backwards, together)
    assert engine.recompiles == before


def _planned(engine: DiffusionEngine, index: int | None) -> Sequence[ImageSpec]:
    request = JobRequest(
        prompt="a star",
        seed=7,
        num_images_per_prompt=SLOTS,
        image_index=index,
        num_inference_steps=3,
    )
    return plan_attempt("j", request, engine.info).specs


def test_an_image_made_by_its_index_is_bit_equal_to_that_of_the_whole_job(
    engine: DiffusionEngine,
) -> None:
    together = engine.start_batch(_planned(engine, None), SHAPE).images()
    assert len({image.tobytes() for image in together}) == SLOTS
    for index in range(SLOTS):
        [alone] = engine.start_batch(_planned(engine, index), SHAPE).images()
        np.testing.assert_array_equal(alone, together[index])


def test_previews_change_with_the_steps_and_do_not_change_the_images(
    engine: DiffusionEngine,
) -> None:
    specs = _specs()
    batch = engine.start_batch(specs, SHAPE)
    first, *_, last = [wait() for wait in [batch.previews() for _ in batch]]
    side = STABLE_DIFFUSION_3.case.DOWNSAMPLING
    assert first.shape == (SLOTS, SHAPE.height // side, SHAPE.width // side, 3)
    assert (first != last).any()
    np.testing.assert_array_equal(batch.images(), engine.start_batch(specs, SHAPE).images())


def test_jobs_that_enter_and_leave_a_stream_equal_those_of_a_batch(
    folder: Path, engine: DiffusionEngine
) -> None:
    (stream,) = _load(folder, devices=1, per_device_batch=2).open_streams()
    images = run_stream(stream, SHAPE, 2, _specs())
    together = engine.start_batch(_specs(), SHAPE).images()
    assert np.abs(np.stack(images).astype(int) - together).max() <= 1
