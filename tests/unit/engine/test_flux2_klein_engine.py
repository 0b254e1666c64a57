"""An engine of FLUX.2 klein makes the images of diffusers, in whole batches and in streams.

Some have mixtures of LoRA of their own.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError, InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.jobs.attempt import offer_of, plan_attempt
from tests.unit.engine.flow_family import FLUX2_KLEIN, SLOTS
from tests.unit.engine.flow_parity import FlowOracle
from tests.unit.engine.stream_runs import run_stream
from tools.parity.flow.flux2_klein_case import PROMPTS, STEPS, Variant
from tools.parity.flow.flux2_klein_loras import CASES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FLUX2_KLEIN.write_with_loras(tmp_path_factory.mktemp("flux2_klein") / "model")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[DiffusionEngine]:
    with FLUX2_KLEIN.engine(folder) as engine:
        yield engine


def _specs() -> dict[str, ImageSpec]:
    """Return the images that diffusers made of the first prompt, by the names of the answers."""
    return FLUX2_KLEIN.specs() | FLUX2_KLEIN.lora_specs()


def test_images_that_enter_a_stream_beside_others_are_those_of_diffusers(
    engine: DiffusionEngine,
) -> None:
    """The first image runs beside one with other steps, whose schedule is another one, too."""
    (stream,) = engine.open_streams()
    specs = _specs()
    other = replace(specs["image|4.0"], num_inference_steps=7)
    first, _, *others = run_stream(
        stream, FLUX2_KLEIN.shape, SLOTS, [specs.pop("image|1.0"), other, *specs.values()]
    )
    FLUX2_KLEIN.check([first, *others], ["image|1.0", *specs])
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
    FLUX2_KLEIN.check_whole_batches(engine, _specs())


@pytest.mark.parametrize("devices", [2, 4])
def test_images_of_weights_that_are_split_over_devices_are_those_of_diffusers(
    folder: Path, devices: int
) -> None:
    """The two heads are split over two devices, and each over two of four."""
    FLUX2_KLEIN.check_split(folder, devices, _specs())


def test_a_distilled_model_has_no_guidance_whatever_the_scale(tmp_path: Path) -> None:
    """Its defaults are those of its page."""
    folder = FLUX2_KLEIN.write(tmp_path / "model", Variant(index={"is_distilled": True}))
    with FLUX2_KLEIN.engine(folder, options=ModelOptions()) as engine:
        (stream,) = engine.open_streams()
        request = JobRequest.parse({"prompt": PROMPTS[0], "guidance_scale": 50})
        given = plan_attempt("a", request, engine.info).specs[0]
        plain = plan_attempt("b", JobRequest.parse({"prompt": PROMPTS[0]}), engine.info).specs[0]
        assert (given.num_inference_steps, plain.guidance_scale) == (STEPS, 1.0)
        images = run_stream(stream, FLUX2_KLEIN.shape, SLOTS, [given, plain])
        FLUX2_KLEIN.check(images, ["image|1.0"] * 2)


@pytest.mark.parametrize("case", CASES)
def test_merged_weights_are_those_that_the_lora_of_a_job_stand_for(folder: Path, case: str) -> None:
    FLUX2_KLEIN.check_merged_loras(folder, folder.parent, case)


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
    options = FLUX2_KLEIN.lora_options(tmp_path, {file: 1.0})
    with pytest.raises(CheckpointError, match=message):
        FlowOracle.read(folder, FLUX2_KLEIN.shape, ModelOptions(loras=options))


@pytest.mark.parametrize("rows", [95, 32])  # 32 are those of one of its three parts
def test_a_fused_layer_of_another_size_is_refused(folder: Path, tmp_path: Path, rows: int) -> None:
    tensors = load_file(folder.parent / "kohya.safetensors")
    key = "lora_unet_double_blocks_1_txt_attn_qkv.lora_up.weight"
    save_file({**tensors, key: tensors[key][:rows]}, tmp_path / "kohya.safetensors")
    options = FLUX2_KLEIN.lora_options(tmp_path, {"kohya": 1.0})
    with pytest.raises(
        CheckpointError, match=rf"txt_attn_qkv\.lora_up\.weight \[{rows}, 4\] do not make"
    ):
        FlowOracle.read(folder, FLUX2_KLEIN.shape, ModelOptions(loras=options))


@pytest.mark.parametrize(("options", "message"), FLUX2_KLEIN.refused_options())
def test_options_that_the_family_lacks_are_refused(
    folder: Path, options: ModelOptions, message: str
) -> None:
    FLUX2_KLEIN.check_refused(folder, options, message)
