"""Encoded texts of FLUX.2 klein are kept, and change no bit of an image."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from imagefleet.worker.engine.contract.interface import ImageSpec, Shape
from imagefleet.worker.engine.contract.text_store import TextStore
from imagefleet.worker.engine.loading.load_engine import SharedStores, load_engine
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from tests.unit.engine.flow_parity import write_drawn_weights
from tests.unit.engine.stream_runs import run_stream
from tests.unit.engine.text_stores import DictStore
from tools.parity.flow.flux2_klein_case import HEIGHT, PROMPTS, WIDTH, Variant, write_configs

SHAPE: Final = Shape(height=HEIGHT, width=WIDTH)
SLOTS: Final = 2
SPEC: Final = ImageSpec(
    prompt=PROMPTS[0],
    negative_prompt="",
    num_inference_steps=2,
    guidance_scale=3.0,
    scheduler="euler",
)
SPECS: Final = (
    SPEC,
    replace(SPEC, seed=7),
    replace(SPEC, prompt=PROMPTS[1], guidance_scale=1.0),
    replace(SPEC, negative_prompt="blue, the star"),
)


def _engine(
    folder: Path, text_cache_bytes: int, text_store: TextStore | None = None
) -> DiffusionEngine:
    engine = load_engine(
        str(folder / "model"),
        mesh="data=1",
        per_device_batch=SLOTS,
        shapes=[SHAPE],
        cache_dir=folder / "cache",
        max_num_inference_steps=2,
        options=ModelOptions(text_cache_bytes=text_cache_bytes),
        shared=SharedStores(texts=text_store),
    )
    assert isinstance(engine, DiffusionEngine)
    return engine


def _write(folder: Path, variant: Variant) -> Path:
    write_configs(folder / "model", variant)
    write_drawn_weights(folder / "model")
    return folder


def test_images_of_kept_texts_have_equal_bits(tmp_path: Path) -> None:
    """Without a cache, with an empty one, with a full one, and from the store of another host."""
    _write(tmp_path, Variant())
    (stream,) = _engine(tmp_path, 0).open_streams()
    expected = run_stream(stream, SHAPE, SLOTS, SPECS)
    store = DictStore()
    keeping = _engine(tmp_path, 1_000_000, store)
    (stream,) = keeping.open_streams()
    assert keeping.text_cache.misses == 0  # trial images keep nothing
    for _ in range(2):
        for image, other in zip(run_stream(stream, SHAPE, SLOTS, SPECS), expected, strict=True):
            np.testing.assert_array_equal(image, other)
    assert keeping.text_cache.misses == 4  # two prompts, and two negative ones
    assert keeping.text_cache.hits == 2 * 2 * len(SPECS) - 4
    assert keeping.recompiles == 0
    reading = _engine(tmp_path, 0, store)
    (stream,) = reading.open_streams()
    for image, other in zip(run_stream(stream, SHAPE, SLOTS, SPECS), expected, strict=True):
        np.testing.assert_array_equal(image, other)
    assert (reading.text_cache.stored, reading.text_cache.misses) == (2 * len(SPECS), 0)


def test_a_distilled_model_encodes_no_negative_prompts(tmp_path: Path) -> None:
    _write(tmp_path, Variant(index={"is_distilled": True}))
    engine = _engine(tmp_path, 1_000_000)
    (stream,) = engine.open_streams()
    first, *_, last = run_stream(stream, SHAPE, SLOTS, SPECS)
    np.testing.assert_array_equal(first, last)
    assert engine.text_cache.misses == 2
    assert engine.text_cache.bytes == 2 * 512 * 48 * 4
