"""An engine of FLUX.2 klein makes the images of diffusers, in whole batches and in streams.

Some have mixtures of LoRA of their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError, ConfigurationError, InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.contract.interface import ImageSpec, Shape
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.options.textual_inversion_options import TextualInversionOption
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.sampling import programs as diffusion_programs
from imagefleet.worker.engine.schedulers.registry import step_table
from imagefleet.worker.jobs.attempt import offer_of, plan_attempt
from tests.unit.engine.flow_parity import FlowOracle, write_drawn_weights
from tests.unit.engine.parity import FOLDER
from tests.unit.engine.stream_runs import run_stream
from tools.parity.flow.flux2_klein_case import (
    GUIDANCES,
    HEIGHT,
    NEGATIVES,
    PROMPTS,
    STEPS,
    WIDTH,
    Variant,
    write_configs,
)
from tools.parity.flow.flux2_klein_loras import CASES, LAYERS, write_loras

ANSWERS: Final = load_file(FOLDER / "flux2_klein.safetensors")
SHAPE: Final = Shape(height=HEIGHT, width=WIDTH)
SLOTS: Final = 2


def _write(folder: Path, variant: Variant | None = None) -> Path:
    write_configs(folder, variant)
    write_drawn_weights(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = _write(tmp_path_factory.mktemp("flux2_klein") / "model")
    write_loras(folder.parent)
    return folder


def lora_options(folder: Path, scales: Mapping[str, float] | None = None) -> tuple[LoraOption, ...]:
    """Return the files of these names, with their scales. None: all files."""
    return tuple(
        LoraOption(name=name, path=str(folder / f"{name}.safetensors"), scale=scale)
        for name, scale in (scales or dict.fromkeys(LAYERS, 1.0)).items()
    )


@contextmanager
def _loaded(
    folder: Path, devices: int = 1, job_loras: tuple[LoraOption, ...] = ()
) -> Iterator[DiffusionEngine]:
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
            options=ModelOptions(job_loras=job_loras),
        )
        assert isinstance(engine, DiffusionEngine)
        yield engine


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[DiffusionEngine]:
    with _loaded(folder, job_loras=lora_options(folder.parent)) as engine:
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
    for case, scales in CASES.items():
        specs[f"lora|{case}"] = replace(specs["image|4.0"], loras=tuple(sorted(scales.items())))
    return specs


def _assert_equal(images: Sequence[NDArray[np.uint8]], names: Sequence[str]) -> None:
    for name, image in zip(names, images, strict=True):
        difference = np.abs(image.astype(int) - ANSWERS[name][0])
        assert difference.max() <= 1, name


def test_images_that_enter_a_stream_beside_others_are_those_of_diffusers(
    engine: DiffusionEngine,
) -> None:
    """The first image runs beside one with other steps, whose schedule is another one, too."""
    (stream,) = engine.open_streams()
    specs = _specs()
    other = replace(specs["image|4.0"], num_inference_steps=7)
    first, _, *others = run_stream(
        stream, SHAPE, SLOTS, [specs.pop("image|1.0"), other, *specs.values()]
    )
    _assert_equal([first, *others], ["image|1.0", *specs])
    assert engine.recompiles == 0
    _require_offers(engine)


def _require_offers(engine: DiffusionEngine) -> None:
    """Require the defaults and the parameters that diffusers' pipeline has."""
    info = engine.info
    assert (info.default_num_inference_steps, info.default_guidance_scale) == (8, 4.0)
    assert (info.default_scheduler, info.max_clip_skip, info.latents) == ("euler", 0, None)
    assert set(info.schedulers) == {"euler", "heun", "dpmsolver++", "unipc", "lcm"}
    assert info.image_use.takes_image


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("clip_skip", 1),
        ("guidance_rescale", 0.5),
        ("cfg_truncation", 0.5),
        ("denoising_end", 0.5),
        ("prompt_weighting", True),
    ],
)
def test_parameters_that_the_family_lacks_are_refused(
    engine: DiffusionEngine, parameter: str, value: Any
) -> None:
    offer = offer_of(engine.info)
    with pytest.raises(InvalidRequest, match=f"^{parameter}=.*{offer.model}"):
        admit(JobRequest.parse({"prompt": "a", parameter: value}), {"default": offer})


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


@pytest.mark.parametrize("devices", [2, 4])
def test_images_of_weights_that_are_split_over_devices_are_those_of_diffusers(
    folder: Path, devices: int
) -> None:
    """The two heads are split over two devices, and each over two of four."""
    with _loaded(folder, devices, lora_options(folder.parent)) as engine:
        (stream,) = engine.open_streams()
        specs = _specs()
        _assert_equal(run_stream(stream, SHAPE, SLOTS, list(specs.values())), list(specs))


def test_a_distilled_model_has_no_guidance_whatever_the_scale(tmp_path: Path) -> None:
    """Its defaults are those of its page."""
    folder = _write(tmp_path / "model", Variant(index={"is_distilled": True}))
    with _loaded(folder) as engine:
        (stream,) = engine.open_streams()
        request = JobRequest.parse({"prompt": PROMPTS[0], "guidance_scale": 50})
        given = plan_attempt("a", request, engine.info).specs[0]
        plain = plan_attempt("b", JobRequest.parse({"prompt": PROMPTS[0]}), engine.info).specs[0]
        assert (given.num_inference_steps, plain.guidance_scale) == (STEPS, 1.0)
        images = run_stream(stream, SHAPE, SLOTS, [given, plain])
        _assert_equal(images, ["image|1.0"] * 2)


@pytest.mark.parametrize("case", CASES)
def test_merged_weights_are_those_that_the_lora_of_a_job_stand_for(folder: Path, case: str) -> None:
    options = lora_options(folder.parent, CASES[case])
    oracle = FlowOracle.read(folder, SHAPE, ModelOptions(loras=options))
    table = step_table("euler", oracle.model.noise_schedule(SHAPE), STEPS)
    pair = (NEGATIVES[0], PROMPTS[0])
    images = oracle.images([pair], table, ANSWERS["noise"][:1], GUIDANCES[-1])
    _assert_equal(list(images.astype(np.uint8)), [f"lora|{case}"])


@pytest.mark.parametrize(
    ("file", "key", "message"),
    [
        ("diffusers", "norm_out.lora_A.weight", "1 key fits no weight of this model"),
        ("diffusers", "diffusion_model.img_in.lora_A.weight", "has names of several formats"),
        ("diffusers", "transformer.context_embedder.alpha", "must have either names with"),
        ("diffusers", "diffusion_model.img_in.lokr_w1", "is a LoKr"),
        ("ai_toolkit", "diffusion_model.final_layer.adaLN_modulation.1.lora_A.weight", "fits no"),
        ("ai_toolkit", "diffusion_model.double_blocks.2.img_attn.qkv.lora_A.weight", "fits no"),
        ("ai_toolkit", "diffusion_model.double_blocks.0.img_attn.qkv.lora_B.weight", "second time"),
        ("kohya", "lora_unet_single_stream_modulation_lin.lora_up.weight", "fits no weight"),
    ],
)
def test_lora_files_that_diffusers_reads_otherwise_are_refused(
    folder: Path, tmp_path: Path, file: str, key: str, message: str
) -> None:
    tensors = load_file(folder.parent / f"{file}.safetensors")
    save_file({**tensors, key: np.ones((3, 32), np.float32)}, tmp_path / f"{file}.safetensors")
    options = lora_options(tmp_path, {file: 1.0})
    with pytest.raises(CheckpointError, match=message):
        FlowOracle.read(folder, SHAPE, ModelOptions(loras=options))


@pytest.mark.parametrize("rows", [95, 32])  # 32 are those of one of its three parts
def test_a_fused_layer_of_another_size_is_refused(folder: Path, tmp_path: Path, rows: int) -> None:
    tensors = load_file(folder.parent / "kohya.safetensors")
    key = "lora_unet_double_blocks_1_txt_attn_qkv.lora_up.weight"
    save_file({**tensors, key: tensors[key][:rows]}, tmp_path / "kohya.safetensors")
    options = lora_options(tmp_path, {"kohya": 1.0})
    with pytest.raises(
        CheckpointError, match=rf"txt_attn_qkv\.lora_up\.weight \[{rows}, 4\] do not make"
    ):
        FlowOracle.read(folder, SHAPE, ModelOptions(loras=options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ModelOptions(prompt_chunks=2),
            "IMAGEFLEET_PROMPT_CHUNKS=2: models of FLUX.2 klein read no weights in prompts",
        ),
        (
            ModelOptions(textual_inversions=(TextualInversionOption(name="a", path="b"),)),
            "textual inversion a: FLUX.2 klein has none",
        ),
    ],
)
def test_options_that_the_family_lacks_are_refused(
    folder: Path, options: ModelOptions, message: str
) -> None:
    with pytest.raises((CheckpointError, ConfigurationError), match=message):
        load_engine(str(folder), shapes=[SHAPE], cache_dir=folder.parent / "c", options=options)
