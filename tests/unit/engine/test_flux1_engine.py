"""An engine of FLUX.1 makes the images of diffusers, in whole batches and in streams."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.jobs.attempt import offer_of
from tests.unit.engine.flow_family import FLUX1, SLOTS
from tests.unit.engine.stream_runs import run_stream


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FLUX1.write(tmp_path_factory.mktemp("flux1") / "model")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[DiffusionEngine]:
    with FLUX1.engine(folder) as engine:
        yield engine


def test_images_that_enter_a_stream_beside_others_are_those_of_diffusers(
    engine: DiffusionEngine,
) -> None:
    """Each has the guidance scale of its own as an input. A negative prompt has no effect."""
    (stream,) = engine.open_streams()
    specs = FLUX1.specs()
    other = replace(specs["image|3.5"], num_inference_steps=7)
    negative = replace(specs["image|3.5"], negative_prompt="a blue star")
    first, _, *others = run_stream(
        stream, FLUX1.shape, SLOTS, [specs["image|1.0"], other, specs["image|3.5"], negative]
    )
    FLUX1.check([first, *others], ["image|1.0", "image|3.5", "image|3.5"])
    assert engine.recompiles == 0
    assert engine.truncated(replace(other, prompt="red " * 512))
    _require_offers(engine)


def _require_offers(engine: DiffusionEngine) -> None:
    """Require the defaults and the parameters that diffusers' pipeline has."""
    info = engine.info
    assert (info.default_num_inference_steps, info.default_guidance_scale) == (8, 3.5)
    assert (info.default_scheduler, info.max_clip_skip, info.latents) == ("euler", 0, None)
    assert set(info.schedulers) == {"euler", "heun", "dpmsolver++", "unipc", "lcm"}


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("clip_skip", 1),
        ("guidance_rescale", 0.5),
        ("cfg_truncation", 0.5),
        ("denoising_end", 0.5),
        ("prompt_weighting", True),
        ("loras", [{"name": "a", "scale": 1.0}]),
    ],
)
def test_parameters_that_the_family_lacks_are_refused(
    engine: DiffusionEngine, parameter: str, value: Any
) -> None:
    offer = offer_of(engine.info)
    with pytest.raises(InvalidRequest, match=f"^{parameter}"):
        admit(JobRequest.parse({"prompt": "a", parameter: value}), {"default": offer})


def test_images_of_a_whole_batch_are_those_of_diffusers(engine: DiffusionEngine) -> None:
    FLUX1.check_whole_batches(engine, FLUX1.specs())


@pytest.mark.parametrize("devices", [2, 4])
def test_images_of_weights_that_are_split_over_devices_are_those_of_diffusers(
    folder: Path, devices: int
) -> None:
    """The two heads are split over two devices, and each over two of four."""
    FLUX1.check_split(folder, devices, FLUX1.specs())


@pytest.mark.parametrize(("options", "message"), FLUX1.refused_options())
def test_options_that_the_family_lacks_are_refused(
    folder: Path, options: ModelOptions, message: str
) -> None:
    FLUX1.check_refused(folder, options, message)


@pytest.mark.parametrize("field", ["loras", "job_loras"])
def test_a_lora_is_refused(folder: Path, field: str) -> None:
    lora: Any = {field: (LoraOption(name="pencil", path="a.safetensors"),)}
    with pytest.raises(ConfigurationError, match=r"^lora pencil: models of FLUX\.1 take no"):
        load_engine(str(folder), cache_dir=folder.parent / "c", options=ModelOptions(**lora))
