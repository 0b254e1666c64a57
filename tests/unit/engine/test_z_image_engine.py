"""An engine of Z-Image makes the images of diffusers, in whole batches and in streams.

Some have mixtures of LoRA of their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageSpec, Shape
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.options.textual_inversion_options import TextualInversionOption
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.sampling import programs as diffusion_programs
from imagefleet.worker.engine.schedulers.registry import step_table
from imagefleet.worker.jobs.attempt import plan_attempt
from tests.unit.engine.flow_parity import FlowOracle, write_drawn_weights
from tests.unit.engine.parity import FOLDER
from tests.unit.engine.stream_runs import run_stream
from tools.parity.flow.z_image_case import (
    GUIDANCES,
    HEIGHT,
    LIMITED_START,
    LIMITS,
    NEGATIVES,
    PROMPTS,
    STEPS,
    STRENGTH,
    WIDTH,
    write_configs,
)
from tools.parity.flow.z_image_loras import CASES, LAYERS, write_loras
from tools.parity.known.write import init_image, inpaint_mask

ANSWERS: Final = load_file(FOLDER / "z_image.safetensors")
SHAPE: Final = Shape(height=HEIGHT, width=WIDTH)
SLOTS: Final = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("z_image") / "model"
    write_configs(folder)
    write_drawn_weights(folder)
    write_loras(folder.parent)
    return folder


def lora_options(folder: Path, scales: Mapping[str, float] | None = None) -> tuple[LoraOption, ...]:
    """Return the files of these names, with their scales. None: all files."""
    return tuple(
        LoraOption(name=name, path=str(folder / f"{name}.safetensors"), scale=scale)
        for name, scale in (scales or dict.fromkeys(LAYERS, 1.0)).items()
    )


@contextmanager
def _loaded(folder: Path, devices: int = 1, text_cache_bytes: int = 0) -> Iterator[DiffusionEngine]:
    """Load the model, with one copy of the weights on all devices.

    Every image begins with the noise that diffusers' images begin with.
    """
    noise = jnp.asarray(np.moveaxis(ANSWERS["noise"][:1], 1, -1))

    def normal(keys: jnp.ndarray, _: tuple[int, ...]) -> jnp.ndarray:
        return jnp.repeat(noise, len(keys), axis=0)

    with patch.object(diffusion_programs, "normal", normal):
        engine = load_engine(
            str(folder),
            mesh=f"data=1,model={devices}",
            per_device_batch=SLOTS,
            shapes=[SHAPE],
            cache_dir=folder.parent / "cache",
            max_num_inference_steps=8,
            options=ModelOptions(
                job_loras=lora_options(folder.parent), text_cache_bytes=text_cache_bytes
            ),
        )
        assert isinstance(engine, DiffusionEngine)
        yield engine


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[DiffusionEngine]:
    with _loaded(folder) as engine:
        yield engine


def _specs() -> dict[str, ImageSpec]:
    """Return the images that diffusers made of the first prompt, by the names of the answers."""
    specs = {
        f"image|{guidance}": ImageSpec(
            prompt=PROMPTS[0],
            negative_prompt=NEGATIVES[0],
            num_inference_steps=STEPS,
            guidance_scale=guidance,
            scheduler="euler",
        )
        for guidance in GUIDANCES
    }
    mask = inpaint_mask(WIDTH)[:HEIGHT]
    for name, levels, strength in (
        ("img2img", None, STRENGTH),
        ("inpaint", mask, STRENGTH),
        ("inpaint by default", mask, 1.0),
    ):
        start = InitImage(
            pixels=init_image(WIDTH)[:HEIGHT],
            mask_levels=levels,
            strength=strength,
            rounds_up=True,
            digest=name,
        )
        specs[name] = ImageSpec(
            prompt=PROMPTS[0],
            negative_prompt=NEGATIVES[0],
            num_inference_steps=STEPS,
            guidance_scale=GUIDANCES[-1],
            scheduler="euler",
            init_image=start,
        )
    guided = specs[f"image|{GUIDANCES[-1]}"]
    specs["img2img, limited"] = _limited(specs["img2img"], LIMITED_START)
    for name, limits in LIMITS.items():
        specs[f"limits|{name}"] = _limited(guided, limits)
    for case, scales in CASES.items():
        specs[f"lora|{case}"] = replace(guided, loras=tuple(sorted(scales.items())))
    return specs


def _limited(spec: ImageSpec, limits: Mapping[str, float]) -> ImageSpec:
    """Return the image with limits of its guidance. diffusers takes True for 1."""
    return replace(
        spec,
        cfg_normalization=float(limits.get("cfg_normalization", 0.0)),
        cfg_truncation=limits.get("cfg_truncation", 1.0),
    )


def _assert_equal(images: Sequence[NDArray[np.uint8]], names: Sequence[str]) -> None:
    for name, image in zip(names, images, strict=True):
        difference = np.abs(image.astype(int) - ANSWERS[name][0])
        assert difference.max() <= 1, name


def test_images_that_enter_a_stream_beside_others_are_those_of_diffusers(
    engine: DiffusionEngine,
) -> None:
    (stream,) = engine.open_streams()
    specs = _specs()
    _assert_equal(run_stream(stream, SHAPE, SLOTS, list(specs.values())), list(specs))
    assert engine.recompiles == 0


def test_images_of_kept_texts_have_equal_bits(engine: DiffusionEngine, folder: Path) -> None:
    specs = [each for name, each in _specs().items() if "lora" in name or name.startswith("image")]
    (stream,) = engine.open_streams()
    expected = run_stream(stream, SHAPE, SLOTS, specs)
    assert engine.text_cache.bytes == 0
    with _loaded(folder, text_cache_bytes=1_000_000) as keeping:
        (stream,) = keeping.open_streams()
        assert keeping.text_cache.misses == 0  # trial images keep nothing
        for _ in range(2):
            images = run_stream(stream, SHAPE, SLOTS, specs)
            for image, other in zip(images, expected, strict=True):
                np.testing.assert_array_equal(image, other)
        assert keeping.text_cache.misses == 2  # the prompt, and the empty negative one
        assert keeping.text_cache.hits >= 4 * len(specs) - 2
        assert keeping.text_cache.bytes > 0
        assert keeping.recompiles == 0


def test_an_empty_negative_prompt_of_a_job_is_read_as_diffusers_reads_it(
    engine: DiffusionEngine,
) -> None:
    """The request keeps a blank in its place, for which Qwen has a token."""
    assert NEGATIVES[0] == ""
    for negative in ({"negative_prompt": ""}, {}):
        request = JobRequest.parse(
            {
                "prompt": PROMPTS[0],
                "num_inference_steps": STEPS,
                "guidance_scale": GUIDANCES[-1],
                **negative,
            }
        )
        (stream,) = engine.open_streams()
        specs = plan_attempt("a", request, engine.info).specs
        _assert_equal(run_stream(stream, SHAPE, SLOTS, specs), [f"image|{GUIDANCES[-1]}"])


def test_images_of_a_whole_batch_are_those_of_diffusers(engine: DiffusionEngine) -> None:
    engine.warm()
    specs = _specs()
    for names in (list(specs)[:SLOTS], list(specs)[-SLOTS:], list(specs)[:1]):
        batch = engine.start_batch([specs[name] for name in names], SHAPE)
        for _ in batch:
            pass
        assert batch.previews()().shape[0] == len(names)
        _assert_equal(list(batch.images()), names)
    assert engine.recompiles == 0
    _require_offers(engine)


@pytest.mark.parametrize("devices", [2, 4])
def test_images_of_weights_that_are_split_over_devices_are_those_of_diffusers(
    folder: Path, devices: int
) -> None:
    """The two heads are split over two devices, and each over two of four."""
    with _loaded(folder, devices) as engine:
        (stream,) = engine.open_streams()
        specs = _specs()
        _assert_equal(run_stream(stream, SHAPE, SLOTS, list(specs.values())), list(specs))


def _require_offers(engine: DiffusionEngine) -> None:
    """Require the defaults and the parameters that diffusers' pipelines have."""
    info = engine.info
    assert (info.default_num_inference_steps, info.default_guidance_scale) == (8, 5.0)
    assert (info.default_scheduler, info.max_clip_skip, info.latents) == ("euler", 0, None)
    assert set(info.schedulers) == {"euler", "heun", "dpmsolver++", "unipc", "lcm"}
    assert info.image_use.default_strengths == (0.6, 1.0, True)


@pytest.mark.parametrize("case", CASES)
def test_merged_weights_are_those_that_the_lora_of_a_job_stand_for(folder: Path, case: str) -> None:
    options = lora_options(folder.parent, CASES[case])
    oracle = FlowOracle.read(folder, SHAPE, ModelOptions(loras=options))
    table = step_table("euler", oracle.model.noise_schedule(SHAPE), STEPS)
    pair = (NEGATIVES[0], PROMPTS[0])
    images = oracle.images([pair], table, ANSWERS["noise"][:1], GUIDANCES[-1])
    _assert_equal(list(images.astype(np.uint8)), [f"lora|{case}"])


def test_a_lora_may_name_the_last_layer_of_attention_as_the_original_program(
    folder: Path, tmp_path: Path
) -> None:
    """diffusers reads the renamed keys as those of the file that made its image."""
    tensors = load_file(folder.parent / "ai_toolkit.safetensors")
    names = {"attention.to_out.0": "attention.out", "lora_A": "lora_down", "lora_B": "lora_up"}
    for ours, theirs in names.items():
        tensors = {key.replace(ours, theirs): value for key, value in tensors.items()}
    assert "diffusion_model.context_refiner.0.attention.out.lora_up.weight" in tensors
    save_file(tensors, tmp_path / "ai_toolkit.safetensors")
    options = lora_options(tmp_path, CASES["ai_toolkit"])
    oracle = FlowOracle.read(folder, SHAPE, ModelOptions(loras=options))
    table = step_table("euler", oracle.model.noise_schedule(SHAPE), STEPS)
    pair = (NEGATIVES[0], PROMPTS[0])
    images = oracle.images([pair], table, ANSWERS["noise"][:1], GUIDANCES[-1])
    _assert_equal(list(images.astype(np.uint8)), ["lora|ai_toolkit"])


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("layers.0.attention.to_k.lora_A.weight", "fits no .* in a format that docs/models.md"),
        ("diffusion_model.layers.0.attention.to.k.lora.down.weight", "fits no weight"),
        ("diffusion_model.layers.0.attention.to_k.lokr_w1", "is a LoKr"),
        ("transformer.layers.0.attention.to_q.alpha", "has an alpha or names of another format"),
        ("diffusion_model.layers.0.attention.to_k.lora_A.weight", "names of another format"),
        ("transformer.layers.0.attention.qkv.lora_A.weight", "1 key fits no weight of this model"),
    ],
)
def test_lora_files_that_diffusers_reads_otherwise_are_refused(
    folder: Path, tmp_path: Path, key: str, message: str
) -> None:
    tensors = load_file(folder.parent / "diffusers.safetensors")
    save_file({**tensors, key: np.ones((3, 32), np.float32)}, tmp_path / "diffusers.safetensors")
    options = lora_options(tmp_path, {"diffusers": 1.0})
    with pytest.raises(CheckpointError, match=message):
        FlowOracle.read(folder, SHAPE, ModelOptions(loras=options))


def test_a_single_file_is_refused(folder: Path) -> None:
    file = folder.with_suffix(".safetensors")
    save_file({"layers.0.attention.qkv.weight": np.ones((3, 32), np.float32)}, file)
    with pytest.raises(CheckpointError, match="Z-Image is read from folders in diffusers format"):
        load_engine(str(file), shapes=[SHAPE], cache_dir=folder.parent / "c")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ModelOptions(prompt_chunks=2),
            "IMAGEFLEET_PROMPT_CHUNKS=2: models of Z-Image read no weights in prompts",
        ),
        (
            ModelOptions(textual_inversions=(TextualInversionOption(name="a", path="b"),)),
            "textual inversion a: Z-Image has none",
        ),
    ],
)
def test_options_that_the_family_lacks_are_refused(
    folder: Path, options: ModelOptions, message: str
) -> None:
    with pytest.raises((CheckpointError, ConfigurationError), match=message):
        load_engine(str(folder), shapes=[SHAPE], cache_dir=folder.parent / "c", options=options)
