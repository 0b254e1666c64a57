"""SDXL's base and refiner share the steps of an image as diffusers' two pipelines do.

`tools/parity/known/ensemble.py` wrote diffusers' answers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from imagefleet.shared.errors import InvalidRequest
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageSpec, OutputArray, Shape
from imagefleet.worker.engine.contract.unfinished_latents import InputLatents, LatentArray
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.sampling import programs as diffusion_programs
from tests.unit.engine.parity import FOLDER, worst, write_known
from tools.parity.fuzz.draft import noise
from tools.parity.known.checkpoints import KnownCheckpoint
from tools.parity.known.ensemble_case import (
    BASE,
    GUIDANCE,
    NEGATIVE,
    OTHER_JOBS,
    PROMPT,
    REFINER,
    SCHEDULERS,
    SIDE,
    SPLIT,
    STEPS,
)
from tools.parity.known.write import init_image

ANSWERS: Final = load_file(FOLDER / "ensemble.safetensors")
SHAPE: Final = Shape(height=SIDE, width=SIDE)
SLOTS: Final = 5
TOLERANCE: Final = 2e-5


@pytest.fixture(scope="module", autouse=True)
def noise_of_diffusers() -> Iterator[None]:
    """Draw the noise that diffusers got."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diffusion_programs, "normal", _normal)
        yield


def _normal(key: jax.Array, size: tuple[int, ...]) -> jax.Array:
    height, width, channels = size
    one = jnp.moveaxis(noise((1, channels, height, width)), 1, -1)
    return jnp.broadcast_to(one, (len(key), *size))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> DiffusionEngine:
    engine = _load(tmp_path_factory.mktemp("base"), BASE)
    engine.warm()
    return engine


@pytest.fixture(scope="module")
def refiner(tmp_path_factory: pytest.TempPathFactory) -> DiffusionEngine:
    engine = _load(tmp_path_factory.mktemp("refiner"), REFINER)
    engine.warm()
    return engine


def _load(folder: Path, checkpoint: KnownCheckpoint) -> DiffusionEngine:
    """Load a checkpoint with a cache of its own: its programs contain the noise of this test."""
    model = folder / "model"
    write_known(model, checkpoint)
    engine = load_engine(
        str(model), shapes=[SHAPE], devices=1, per_device_batch=SLOTS, cache_dir=folder / "cache"
    )
    assert isinstance(engine, DiffusionEngine)
    return engine


def _spec(
    scheduler: str,
    *,
    latents: LatentArray | None = None,
    start: float = SPLIT,
    end: float | None = None,
    image: InitImage | None = None,
    steps: int = STEPS,
) -> ImageSpec:
    return ImageSpec(
        prompt=PROMPT,
        negative_prompt=NEGATIVE,
        num_inference_steps=steps,
        guidance_scale=GUIDANCE,
        scheduler=scheduler,
        init_image=image,
        input_latents=None
        if latents is None
        else InputLatents(values=latents, denoising_start=start, digest=""),
        denoising_end=end,
    )


def _answer(key: str) -> LatentArray:
    """Return the latents of diffusers with channels last, `[h, w, c]`."""
    return np.moveaxis(ANSWERS[key][0], 0, -1)


def _run(engine: DiffusionEngine, specs: list[ImageSpec]) -> list[OutputArray]:
    """Run the specs in as few batches as possible, in other places than in their order."""
    outputs: list[OutputArray] = []
    for first in range(0, len(specs), SLOTS):
        outputs += engine.start_batch(specs[first : first + SLOTS], SHAPE).outputs()
    return outputs


def test_the_base_leaves_the_latents_of_diffusers_with_every_scheduler(
    base: DiffusionEngine,
) -> None:
    outputs = _run(base, [_spec(name, end=SPLIT) for name in SCHEDULERS])
    differences = {
        name: worst(latents, _answer(f"{name}|base"))
        for name, latents in zip(SCHEDULERS, outputs, strict=True)
    }
    assert max(differences.values()) < TOLERANCE, differences
    assert base.recompiles == 0


def test_the_refiner_goes_on_as_that_of_diffusers_with_every_scheduler(
    refiner: DiffusionEngine,
) -> None:
    """0.9999 leaves no step out, so the refiner's latents after its last step are returned."""
    specs = [_spec(name, latents=_answer(f"{name}|base"), end=0.9999) for name in SCHEDULERS]
    differences = {
        name: worst(latents, _answer(f"{name}|refined"))
        for name, latents in zip(SCHEDULERS, _run(refiner, specs), strict=True)
    }
    assert max(differences.values()) < TOLERANCE, differences
    assert refiner.recompiles == 0


def test_jobs_with_images_and_with_latents_share_a_batch(refiner: DiffusionEngine) -> None:
    latents = _answer("euler|base")
    strength = OTHER_JOBS["noised image"]["strength"]
    start = InitImage(pixels=init_image(SIDE), strength=strength, digest="")
    finished, middle, noised = (
        _spec("euler", latents=latents),
        _spec("euler", latents=latents, end=OTHER_JOBS["middle"]["denoising_end"]),
        _spec("euler", image=start, end=OTHER_JOBS["noised image"]["denoising_end"]),
    )
    image, of_middle, of_noised = _run(refiner, [finished, middle, noised])
    assert image.dtype == np.uint8
    assert np.abs(image.astype(int) - ANSWERS["euler|image"][0]).max() <= 1
    assert worst(of_middle, _answer("euler|middle")) < TOLERANCE
    assert worst(of_noised, _answer("euler|noised image")) < TOLERANCE
    running = refiner.start_batch([middle], SHAPE)
    np.testing.assert_array_equal(running.outputs()[0], of_middle)
    assert running.flagged() == (False,)

    [stream] = refiner.open_streams()
    for slot, spec in enumerate((finished, middle)):
        stream.start(slot, spec, SHAPE)
    streamed: dict[int, OutputArray] = {}
    while len(streamed) < 2:
        for slot in stream.step():
            streamed[slot] = stream.finish(slot)().pixels
    assert np.abs(streamed[0].astype(int) - image).max() <= 1
    assert worst(streamed[1], np.asarray(of_middle)) < TOLERANCE
    assert refiner.recompiles == 0


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        # The only timestep of one step with leading spacing is 1.
        (
            _spec("euler", end=0.5, steps=1),
            r"^denoising_end=0.5: leaves none of 1 steps of euler to denoise$",
        ),
        (
            _spec("ddim", latents=np.zeros((8, 8, 4), np.float32), start=0.9999),
            r"^denoising_start=0.9999: leaves none of 6 steps of ddim to denoise$",
        ),
    ],
)
def test_a_share_that_leaves_no_step_is_refused(
    base: DiffusionEngine, spec: ImageSpec, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        base.start_batch([spec], SHAPE)


def test_latents_of_another_size_are_refused(base: DiffusionEngine) -> None:
    spec = _spec("ddim", latents=np.zeros((8, 4, 4), np.float32))
    with pytest.raises(ValueError, match=r"shape \(8, 4, 4\), but those of the batch have \(8, 8"):
        base.start_batch([spec], SHAPE)


def test_only_pipelines_of_sdxl_split_their_steps() -> None:
    found = {name: Configs.read(CheckpointFiles(FOLDER / name)) for name in ("older", "xl")}
    assert found["older"].latent_format is None
    latents = found["xl"].latent_format
    assert latents is not None
    assert latents.scaling == f"scaling_factor={found['xl'].vae.scaling_factor}"
