"""Images of FLUX.2 klein with a reference image are those of diffusers, alone and beside others."""

from pathlib import Path
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.contract.image_use import ImageLimits
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageSpec, Shape
from imagefleet.worker.engine.families.flux2_klein.configs import IMAGE_LIMITS
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.sampling import programs as diffusion_programs
from imagefleet.worker.jobs.attempt import offer_of
from tests.unit.engine.flow_parity import write_drawn_weights
from tests.unit.engine.parity import FOLDER
from tests.unit.engine.stream_runs import run_stream
from tools.parity.flow.flux2_klein_case import NEGATIVES, Variant, write_configs
from tools.parity.flow.flux2_klein_reference_case import (
    HEIGHT,
    REFERENCES,
    WIDTH,
    reference_image,
)

ANSWERS: Final = load_file(FOLDER / "flux2_klein_references.safetensors")
SHAPE: Final = Shape(height=HEIGHT, width=WIDTH)
SMALL: Final = Shape(height=32, width=48)
SLOTS: Final = 2


def _engine(folder: Path, variant: Variant, *shapes: Shape, slots: int = 1) -> DiffusionEngine:
    """Load a model. Every image begins with the noise of the case."""
    if not (folder / "model").exists():
        write_configs(folder / "model", variant)
        write_drawn_weights(folder / "model")
    engine = load_engine(
        str(folder / "model"),
        mesh="data=1",
        per_device_batch=slots,
        shapes=shapes or (Shape(height=variant.height, width=variant.width),),
        cache_dir=folder / "cache",
        max_num_inference_steps=9,
    )
    assert isinstance(engine, DiffusionEngine)
    return engine


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the noise with which all images begin, by its case."""

    def begin_with(variant: Variant) -> None:
        drawn = jnp.asarray(np.moveaxis(variant.noise, 1, -1))

        def normal(keys: jnp.ndarray, size: tuple[int, ...]) -> jnp.ndarray:
            assert drawn.shape[1:] == size
            return jnp.repeat(drawn, len(keys), axis=0)

        monkeypatch.setattr(diffusion_programs, "normal", normal)

    return begin_with


def _spec(variant: Variant, *, has_image: bool = True) -> ImageSpec:
    start = InitImage(pixels=reference_image(variant), strength=1.0, digest="")
    return ImageSpec(
        prompt=variant.prompt,
        negative_prompt=NEGATIVES[1],
        num_inference_steps=variant.steps,
        guidance_scale=variant.guidance,
        scheduler="euler",
        init_image=start if has_image else None,
    )


def _assert_equal(image: NDArray[np.uint8], name: str) -> None:
    assert np.abs(image.astype(int) - ANSWERS[name][0]).max() <= 1, name


@pytest.mark.parametrize("name", REFERENCES)
def test_images_with_a_reference_image_are_those_of_diffusers(
    tmp_path: Path, noise: Any, name: str
) -> None:
    variant = REFERENCES[name]
    noise(variant)
    engine = _engine(tmp_path, variant)
    (stream,) = engine.open_streams()
    (shape,) = engine.info.shapes
    (image,) = run_stream(stream, shape, 1, [_spec(variant)])
    _assert_equal(image, name)
    assert engine.recompiles == 0


CASES: Final = {
    name: variant
    for name, variant in REFERENCES.items()
    if (variant.height, variant.width) == (HEIGHT, WIDTH)
}
"""They have one checkpoint and one size, and so share batches."""


def test_images_with_and_without_a_reference_share_slots_of_a_stream(
    tmp_path: Path, noise: Any
) -> None:
    noise(next(iter(CASES.values())))
    engine = _engine(tmp_path, next(iter(CASES.values())), SHAPE, slots=SLOTS)
    (stream,) = engine.open_streams()
    plain = [_spec(variant, has_image=False) for variant in CASES.values()]
    alone = run_stream(stream, SHAPE, SLOTS, plain)
    with_images = [_spec(variant) for variant in CASES.values()]
    mixed = [spec for pair in zip(with_images, plain, strict=True) for spec in pair]
    images = run_stream(stream, SHAPE, SLOTS, mixed)
    for name, image in zip(CASES, images[::2], strict=True):
        _assert_equal(image, name)
    for image, other in zip(images[1::2], alone, strict=True):
        assert np.abs(image.astype(int) - other).max() <= 1
        assert np.abs(image.astype(int) - images[0]).max() > 1
    assert engine.recompiles == 0


def test_images_of_a_whole_batch_may_have_reference_images(tmp_path: Path, noise: Any) -> None:
    """A shape that is too small for a reference image has no program for it."""
    first = next(iter(CASES.values()))
    noise(first)
    engine = _engine(tmp_path, first, SHAPE, slots=SLOTS)
    engine.warm()
    batch = engine.start_batch([_spec(variant) for variant in CASES.values()], SHAPE)
    for name, image in zip(CASES, batch.images(), strict=True):
        _assert_equal(image, name)
    plain = engine.start_batch([_spec(first, has_image=False)], SHAPE)
    assert np.abs(plain.images()[0].astype(int) - ANSWERS["unguided"][0]).max() > 1
    assert engine.recompiles == 0
    _require_offer(engine)


def _require_offer(engine: DiffusionEngine) -> None:
    offer = offer_of(engine.info)
    given = {"prompt": "a", "image": "a.png"}
    admit(JobRequest.parse(given), {"default": offer})
    admit(JobRequest.parse({"prompt": "a"}), {"default": offer})
    for further in ({"strength": 0.5}, {"mask_image": "b.png"}, {"image_guidance_scale": 2}):
        with pytest.raises(InvalidRequest, match=f"^{next(iter(further))}="):
            admit(JobRequest.parse(given | further), {"default": offer})


def test_a_size_that_diffusers_takes_as_no_reference_has_no_program_for_it(tmp_path: Path) -> None:
    engine = _engine(tmp_path, Variant(), SMALL)
    lowered = engine._compiler.lowerings(SMALL, engine._rgb_factors)
    assert not any("reference" in name for name in lowered)
    assert not engine._programs.takes_reference(32, 48)


@pytest.mark.parametrize(
    ("height", "width", "allowed"),
    [
        (64, 64, True),
        (64, 512, True),
        (64, 528, False),
        (1024, 1024, True),
        (1040, 1024, False),
        (48, 64, False),
    ],
)
def test_the_sizes_of_reference_images_are_those_that_diffusers_takes_unchanged(
    height: int, width: int, allowed: bool
) -> None:
    assert IMAGE_LIMITS.allow(height, width) is allowed
    assert ImageLimits(min_side=1, max_pixels=10**9, max_ratio=1000).allow(height, width)
