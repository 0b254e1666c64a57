"""An image is the same in every slot, batch and number of devices."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import jax
import numpy as np
import pytest

from imagefleet.shared.errors import DeviceError
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import Engine, ImageArrays, ImageSpec, Shape
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.schedulers.registry import SCHEDULERS

NATIVE: Final = Shape(height=32, width=32)
WarmEngine = Callable[[int, int], Engine]


def _specs(count: int) -> list[ImageSpec]:
    schedulers = tuple(SCHEDULERS)
    return [
        ImageSpec(
            prompt=f"a red circle on blue {index}",
            negative_prompt="blue" if index % 2 else "",
            seed=1234567890123 + index // 2,
            image_index=index % 2,
            num_inference_steps=3 + index,
            guidance_scale=1.0 + index,
            scheduler=schedulers[index % len(schedulers)],
        )
        for index in range(count)
    ]


def _generate(engine: Engine, specs: Sequence[ImageSpec]) -> ImageArrays:
    return engine.start_batch(specs, NATIVE).images()


def test_an_image_is_bit_equal_alone_in_a_full_batch_and_in_any_slot(
    warm_engine: WarmEngine,
) -> None:
    engine, specs = warm_engine(8, 1), _specs(8)
    before = engine.recompiles  # it counts the programs of this session's other engines, too
    together = _generate(engine, specs)
    assert len({image.tobytes() for image in together}) == 8
    np.testing.assert_array_equal(_generate(engine, specs[5:6])[0], together[5])
    np.testing.assert_array_equal(_generate(engine, specs[::-1])[::-1], together)
    assert engine.recompiles == before


@pytest.mark.parametrize(("devices", "per_device_batch"), [(1, 1), (4, 1), (1, 8)])
def test_an_image_is_the_same_on_any_number_of_devices(
    warm_engine: WarmEngine, devices: int, per_device_batch: int
) -> None:
    specs = _specs(devices * per_device_batch)
    expected = _generate(warm_engine(8, 1), specs)
    images = _generate(warm_engine(devices, per_device_batch), specs)
    # A device's program depends on its own batch size only. With another size, convolutions add in
    # another order. Measured on the bundled model: 1 value in 100,000 is one level off.
    assert np.abs(images.astype(int) - expected).max() <= (0 if per_device_batch == 1 else 1)


def test_each_field_of_a_spec_changes_the_image(
    warm_engine: WarmEngine,
) -> None:
    spec = _specs(1)[0]
    variants = [
        spec,
        replace(spec, seed=spec.seed + 2**32),
        replace(spec, image_index=7),
        replace(spec, prompt="blue"),
        replace(spec, negative_prompt="circle", guidance_scale=5.0),
        replace(spec, guidance_scale=5.0),
        replace(spec, num_inference_steps=9),
        replace(spec, scheduler="euler"),
    ]
    images = _generate(warm_engine(8, 1), variants)
    assert len({image.tobytes() for image in images}) == len(variants)
    guided = replace(spec, guidance_scale=5.0)
    more = [spec, replace(spec, clip_skip=1), guided, replace(guided, guidance_rescale=0.7)]
    images = _generate(warm_engine(8, 1), more)
    assert len({image.tobytes() for image in images}) == len(more)


def test_without_guidance_the_negative_prompt_has_no_effect(warm_engine: WarmEngine) -> None:
    spec = replace(_specs(1)[0], guidance_scale=1.0)
    first, second = _generate(warm_engine(8, 1), [spec, replace(spec, negative_prompt="red")])
    np.testing.assert_array_equal(first, second)


def test_a_batch_without_guidance_runs_the_unguided_step_with_equal_images(
    warm_engine: WarmEngine,
) -> None:
    engine = warm_engine(8, 1)
    before = engine.recompiles
    plain = [replace(spec, guidance_scale=1.0) for spec in _specs(7)]
    running_batch = engine.start_batch(plain, NATIVE)
    running_batch._executables = replace(running_batch._executables, step=None)  # type: ignore[attr-defined]
    mixed = _generate(engine, [*plain, replace(_specs(8)[7], guidance_scale=5.0)])
    difference = np.abs(running_batch.images().astype(int) - mixed[:7])
    # The networks run another batch size, so they add in another order. Measured: all equal.
    assert difference.max() <= 1
    assert engine.recompiles == before


def test_steps_are_reported_one_by_one(warm_engine: WarmEngine) -> None:
    specs = [replace(spec, scheduler="ddim") for spec in _specs(3)]
    assert list(warm_engine(8, 1).start_batch(specs, NATIVE)) == [1, 2, 3, 4, 5]


def test_a_batch_ends_with_the_longest_slot_that_is_not_dropped(warm_engine: WarmEngine) -> None:
    engine = warm_engine(8, 1)
    short, long = (replace(_specs(1)[0], num_inference_steps=steps) for steps in (5, 20))
    running_batch, seen = engine.start_batch([short, long, short], NATIVE), []
    for step in running_batch:
        seen.append(step)
        if step == 1:
            running_batch.drop([1])
    assert seen == [1, 2, 3, 4, 5]
    left = running_batch.images()[[0, 2]]
    np.testing.assert_array_equal(left, _generate(engine, [short, short]))


def test_a_batch_ends_at_once_when_all_slots_are_dropped(warm_engine: WarmEngine) -> None:
    running_batch, seen = warm_engine(8, 1).start_batch(_specs(3), NATIVE), []
    for step in running_batch:
        seen.append(step)
        running_batch.drop([0, 1])
        running_batch.drop([2])
    assert seen == [1]


def test_nan_in_a_dropped_slot_is_no_error(warm_engine: WarmEngine) -> None:
    specs = _specs(2)
    running_batch = warm_engine(8, 1).start_batch(
        [specs[0], replace(specs[1], guidance_scale=3e38)], NATIVE
    )
    running_batch.drop([1])
    running_batch.images()


def test_previews_are_small_change_with_the_steps_and_do_not_change_the_images(
    warm_engine: WarmEngine,
) -> None:
    engine, specs = warm_engine(8, 1), _specs(3)
    running_batch = engine.start_batch(specs, NATIVE)
    waits = [running_batch.previews() for _ in running_batch]
    first, last = waits[0](), waits[-1]()
    assert first.shape == last.shape == (3, 8, 8, 3)
    assert first.dtype == np.uint8
    assert not np.array_equal(first, last)
    np.testing.assert_array_equal(running_batch.images(), _generate(engine, specs))


def _init_image(seed: int, strength: float = 0.6, *, masked: bool = False) -> InitImage:
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), np.uint8)
    right_half = np.zeros((32, 32), np.uint8)
    right_half[:, 16:] = 255
    mask = right_half if masked else None
    return InitImage(pixels=pixels, mask_levels=mask, strength=strength, digest=f"{seed} {masked}")


def test_an_init_image_changes_the_image_of_its_own_slot_only(
    warm_engine: WarmEngine,
) -> None:
    engine, specs = warm_engine(8, 1), _specs(4)
    before = engine.recompiles
    mixed = [
        specs[0],
        replace(specs[1], init_image=_init_image(1), num_inference_steps=9),
        replace(specs[2], init_image=_init_image(2, masked=True), num_inference_steps=9),
        replace(specs[3], init_image=_init_image(2, 1.0, masked=True)),
    ]
    together = _generate(engine, mixed)
    np.testing.assert_array_equal(together[0], _generate(engine, specs[:1])[0])
    for slot in (1, 2, 3):
        np.testing.assert_array_equal(together[slot], _generate(engine, mixed[slot : slot + 1])[0])
    assert list(engine.start_batch([mixed[1]], NATIVE))[-1] in (5, 6)  # 0.6 of 9
    assert engine.recompiles == before


def test_inpainting_keeps_the_pixels_outside_the_mask(warm_engine: WarmEngine) -> None:
    engine = warm_engine(8, 1)
    spec = replace(_specs(1)[0], init_image=_init_image(1, masked=True), num_inference_steps=9)
    one, other = _generate(engine, [spec, replace(spec, prompt="a blue star")]).astype(int)
    kept, generated = np.abs(one - other)[:, :8].mean(), np.abs(one - other)[:, 16:].mean()
    assert kept < generated / 4  # the decoder blurs the border


def test_an_unusable_init_image_is_rejected(warm_engine: WarmEngine) -> None:
    engine, (spec,) = warm_engine(8, 1), _specs(1)
    small = replace(_init_image(1), pixels=np.zeros((16, 32, 3), np.uint8))
    with pytest.raises(ValueError, match="init image is 16x32 pixels, but the batch is for 32x32"):
        engine.start_batch([replace(spec, init_image=small)], NATIVE)
    with pytest.raises(ValueError, match=r"strength 0\.1 leaves none of 3 steps"):
        engine.start_batch([replace(spec, init_image=_init_image(1, 0.1))], NATIVE)


def test_an_impossible_batch_is_rejected(warm_engine: WarmEngine) -> None:
    engine, (spec,) = warm_engine(8, 1), _specs(1)
    with pytest.raises(ValueError, match="9 images; a batch takes 1 to 8"):
        engine.start_batch([spec] * 9, NATIVE)
    with pytest.raises(ValueError, match="0 images"):
        engine.start_batch([], NATIVE)
    with pytest.raises(ValueError, match="shape 64x64 is not declared"):
        engine.start_batch([spec], Shape(height=64, width=64))
    with pytest.raises(ValueError, match="scheduler 'ddpm'"):
        engine.start_batch([replace(spec, scheduler="ddpm")], NATIVE)
    with pytest.raises(ValueError, match="21 steps are out of range; 1 to 20"):
        engine.start_batch([replace(spec, num_inference_steps=21)], NATIVE)


def test_nan_in_a_slot_is_an_error_and_affects_no_other_slot(
    warm_engine: WarmEngine,
) -> None:
    engine, specs = warm_engine(8, 1), _specs(3)
    broken = replace(specs[1], guidance_scale=3e38, prompt="the broken one")
    with pytest.raises(DeviceError, match=r"1 of 3 .* 'the broken one'"):
        _generate(engine, [specs[0], broken, specs[2]])
    np.testing.assert_array_equal(_generate(engine, specs[:1])[0], _generate(engine, specs)[0])


def test_an_error_of_the_runtime_becomes_a_device_error(warm_engine: WarmEngine) -> None:
    engine = warm_engine(8, 1)
    assert isinstance(engine, DiffusionEngine)

    def out_of_memory(*_: Any) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nlong trace")

    running_batch = engine.start_batch(_specs(1), NATIVE)
    broken = replace(running_batch._executables, step=out_of_memory, unguided_step=out_of_memory)
    running_batch._executables = broken
    with pytest.raises(DeviceError, match=r"RESOURCE_EXHAUSTED: out of memory$"):
        running_batch.images()
