"""An engine of Z-Image makes the images of diffusers, in whole batches and in streams.

Some have mixtures of LoRA of their own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.jobs.attempt import plan_attempt
from tests.unit.engine.flow_family import SLOTS, Z_IMAGE
from tests.unit.engine.flow_parity import FlowOracle
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
)
from tools.parity.flow.z_image_loras import CASES
from tools.parity.known.write import init_image, inpaint_mask


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Z_IMAGE.write_with_loras(tmp_path_factory.mktemp("z_image") / "model")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[DiffusionEngine]:
    with Z_IMAGE.engine(folder) as engine:
        yield engine


def _specs() -> dict[str, ImageSpec]:
    """Return the images that diffusers made of the first prompt, by the names of the answers."""
    specs = Z_IMAGE.specs()
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
        specs[name] = Z_IMAGE.spec(GUIDANCES[-1], init_image=start)
    guided = specs[f"image|{GUIDANCES[-1]}"]
    specs["img2img, limited"] = _limited(specs["img2img"], LIMITED_START)
    for name, limits in LIMITS.items():
        specs[f"limits|{name}"] = _limited(guided, limits)
    return specs | Z_IMAGE.lora_specs()


def _limited(spec: ImageSpec, limits: Mapping[str, float]) -> ImageSpec:
    """Return the image with limits of its guidance. diffusers takes True for 1."""
    return replace(
        spec,
        cfg_normalization=float(limits.get("cfg_normalization", 0.0)),
        cfg_truncation=limits.get("cfg_truncation", 1.0),
    )


def test_images_that_enter_a_stream_beside_others_are_those_of_diffusers(
    engine: DiffusionEngine,
) -> None:
    Z_IMAGE.check_stream(engine, _specs())
    assert engine.recompiles == 0


def test_images_of_kept_texts_have_equal_bits(engine: DiffusionEngine, folder: Path) -> None:
    specs = [each for name, each in _specs().items() if "lora" in name or name.startswith("image")]
    (stream,) = engine.open_streams()
    expected = run_stream(stream, Z_IMAGE.shape, SLOTS, specs)
    assert engine.text_cache.bytes == 0
    keep = ModelOptions(job_loras=Z_IMAGE.lora_options(folder.parent), text_cache_bytes=1_000_000)
    with Z_IMAGE.engine(folder, options=keep) as keeping:
        (stream,) = keeping.open_streams()
        assert keeping.text_cache.misses == 0  # trial images keep nothing
        for _ in range(2):
            images = run_stream(stream, Z_IMAGE.shape, SLOTS, specs)
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
        Z_IMAGE.check(run_stream(stream, Z_IMAGE.shape, SLOTS, specs), [f"image|{GUIDANCES[-1]}"])


def test_images_of_a_whole_batch_are_those_of_diffusers(engine: DiffusionEngine) -> None:
    Z_IMAGE.check_whole_batches(engine, _specs())
    _require_offers(engine)


@pytest.mark.parametrize("devices", [2, 4])
def test_images_of_weights_that_are_split_over_devices_are_those_of_diffusers(
    folder: Path, devices: int
) -> None:
    """The two heads are split over two devices, and each over two of four."""
    Z_IMAGE.check_split(folder, devices, _specs())


def _require_offers(engine: DiffusionEngine) -> None:
    """Require the defaults and the parameters that diffusers' pipelines have."""
    info = engine.info
    assert (info.default_num_inference_steps, info.default_guidance_scale) == (8, 5.0)
    assert (info.default_scheduler, info.max_clip_skip, info.latents) == ("euler", 0, None)
    assert set(info.schedulers) == {"euler", "heun", "dpmsolver++", "unipc", "lcm"}
    assert info.image_use.default_strengths == (0.6, 1.0, True)


@pytest.mark.parametrize("case", CASES)
def test_merged_weights_are_those_that_the_lora_of_a_job_stand_for(folder: Path, case: str) -> None:
    Z_IMAGE.check_merged_loras(folder, folder.parent, case)


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
    Z_IMAGE.check_merged_loras(folder, tmp_path, "ai_toolkit")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("layers.0.attention.to_k.lora_A.weight", "names layers without a prefix and has no alpha"),
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
    options = Z_IMAGE.lora_options(tmp_path, {"diffusers": 1.0})
    with pytest.raises(CheckpointError, match=message):
        FlowOracle.read(folder, Z_IMAGE.shape, ModelOptions(loras=options))


def test_a_single_file_is_refused(folder: Path) -> None:
    file = folder.with_suffix(".safetensors")
    save_file({"layers.0.attention.qkv.weight": np.ones((3, 32), np.float32)}, file)
    with pytest.raises(CheckpointError, match="Z-Image is read from folders in diffusers format"):
        load_engine(str(file), shapes=[Z_IMAGE.shape], cache_dir=folder.parent / "c")


@pytest.mark.parametrize(("options", "message"), Z_IMAGE.refused_options())
def test_options_that_the_family_lacks_are_refused(
    folder: Path, options: ModelOptions, message: str
) -> None:
    Z_IMAGE.check_refused(folder, options, message)
