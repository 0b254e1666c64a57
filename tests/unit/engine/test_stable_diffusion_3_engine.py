"""An engine of Stable Diffusion 3 makes the images of diffusers, in whole batches and in
streams."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from tests.unit.engine.flow_family import SLOTS, STABLE_DIFFUSION_3
from tests.unit.engine.flow_parity import FlowOracle
from tests.unit.engine.stream_runs import run_stream
from tools.parity.flow.stable_diffusion_3_case import CLIP_SKIP, GUIDANCES
from tools.parity.flow.stable_diffusion_3_loras import CASES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return STABLE_DIFFUSION_3.write_with_loras(
        tmp_path_factory.mktemp("stable_diffusion_3") / "model"
    )


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[DiffusionEngine]:
    with STABLE_DIFFUSION_3.engine(folder) as engine:
        yield engine


def _specs() -> dict[str, ImageSpec]:
    """Return images without guidance, with it, with layers of CLIP that the prompt skips, and with
    LoRA."""
    skipping = STABLE_DIFFUSION_3.spec(GUIDANCES[-1], clip_skip=CLIP_SKIP)
    return {
        **STABLE_DIFFUSION_3.specs(),
        "clip_skip": skipping,
        **STABLE_DIFFUSION_3.lora_specs(),
    }


def test_images_that_enter_a_stream_beside_others_are_those_of_diffusers(
    engine: DiffusionEngine,
) -> None:
    (stream,) = engine.open_streams()
    specs = _specs()
    other = replace(specs["image|4.5"], num_inference_steps=7)
    first, _, *others = run_stream(
        stream, STABLE_DIFFUSION_3.shape, SLOTS, [specs.pop("image|1.0"), other, *specs.values()]
    )
    STABLE_DIFFUSION_3.check([first, *others], ["image|1.0", *specs])
    assert engine.recompiles == 0
    assert engine.truncated(replace(other, prompt="red " * 77))
    _require_offers(engine)


def _require_offers(engine: DiffusionEngine) -> None:
    """Require the defaults and the parameters that diffusers' pipeline has."""
    info = engine.info
    assert (info.default_num_inference_steps, info.default_guidance_scale) == (8, 7.0)
    assert (info.default_scheduler, info.max_clip_skip, info.latents) == ("euler", 1, None)
    assert set(info.schedulers) == {"euler", "heun", "dpmsolver++", "unipc", "lcm"}


def test_images_of_a_whole_batch_are_those_of_diffusers(engine: DiffusionEngine) -> None:
    STABLE_DIFFUSION_3.check_whole_batches(engine, _specs())


@pytest.mark.parametrize("devices", [2, 4])
def test_images_of_weights_that_are_split_over_devices_are_those_of_diffusers(
    folder: Path, devices: int
) -> None:
    """The two heads are split over two devices, and each over two of four."""
    STABLE_DIFFUSION_3.check_split(folder, devices, _specs())


@pytest.mark.parametrize(("options", "message"), STABLE_DIFFUSION_3.refused_options())
def test_options_that_the_family_lacks_are_refused(
    folder: Path, options: ModelOptions, message: str
) -> None:
    STABLE_DIFFUSION_3.check_refused(folder, options, message)


@pytest.mark.parametrize("case", CASES)
def test_merged_weights_are_those_that_the_lora_of_a_job_stand_for(folder: Path, case: str) -> None:
    STABLE_DIFFUSION_3.check_merged_loras(folder, folder.parent, case)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("lora_unet_joint_blocks_0_x_block_attn_qkv.lora_down.weight", "fits no weight"),
        ("transformer.transformer_blocks.0.attn.to_q.alpha", "lora_A and lora_B alone"),
        ("text_encoder.encoder.layers.0.self_attn.q_proj.lora_A.weight", "fits no weight"),
        ("text_encoder_3.encoder.block.0.layer.0.SelfAttention.q.lora_A.weight", "fits no weight"),
        (
            "text_encoder.text_model.encoder.layers.0.mlp.fc1.lora_A.weight",
            "no layer of attention of text_encoder,",
        ),
    ],
)
def test_lora_files_that_diffusers_does_not_read_are_refused(
    folder: Path, tmp_path: Path, key: str, message: str
) -> None:
    tensors = load_file(folder.parent / "attention.safetensors")
    save_file({**tensors, key: np.zeros((3, 32), np.float32)}, tmp_path / "attention.safetensors")
    options = STABLE_DIFFUSION_3.lora_options(tmp_path, {"attention": 1.0})
    with pytest.raises(CheckpointError, match=message):
        FlowOracle.read(folder, STABLE_DIFFUSION_3.shape, ModelOptions(loras=options))
