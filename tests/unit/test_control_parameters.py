"""A job with a ControlNet from its parameters to what the engine gets."""

from io import BytesIO

import pytest
from PIL import Image

from imagefleet.producer.commands.submit import submit
from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.jobs.attempt import offer_of, plan_attempt
from imagefleet.worker.jobs.input_images import InputImages
from imagefleet.worker.jobs.input_permits import image_source
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.load_model import model_options


def _options(text: str) -> ModelOptions:
    return model_options(WorkerSettings.load(controlnet=text))


def _engine(text: str = "canny=/nets/canny,depth=/nets/depth") -> FakeEngine:
    return FakeEngine.parse("fake", shapes=None, max_num_inference_steps=9, options=_options(text))


def test_a_command_becomes_a_spec_with_the_pixels_of_the_control_image() -> None:
    given = {
        "--controlnet": "canny",
        "--control-image": "inputs/edges.png",
        "--controlnet-conditioning-scale": "0.5",
        "--control-guidance-start": "0.1",
        "--control-guidance-end": "0.8",
        "--image": "inputs/start.png",
        "--strength": "0.6",
    }
    words = [word for pair in given.items() for word in pair]
    chosen = submit.make_context("submit", ["a", *words]).params
    parameters = {name: chosen[name] for name in PARAMETERS.keys() - {"prompt"} if chosen[name]}
    request = JobRequest.parse({"prompt": "a", **parameters})
    info = _engine().info
    attempt = plan_attempt("j", request, info)
    file = BytesIO()
    Image.new("RGB", (20, 10), (255, 0, 0)).save(file, "PNG")
    store = MemoryStore()
    store.put("inputs/edges.png", file.getvalue(), "image/png")
    assert image_source(request.model_dump()) is not None
    Image.new("RGB", (8, 8), (0, 255, 0)).save(start := BytesIO(), "PNG")
    store.put("inputs/start.png", start.getvalue(), "image/png")
    fetched = InputImages(store, AllowList.parse(())).fetch(request, attempt.shape)
    assert attempt.start_from(*fetched)
    [spec] = attempt.specs
    assert (spec.controlnet, spec.controlnet_conditioning_scale) == ("canny", 0.5)
    assert (spec.control_guidance_start, spec.control_guidance_end) == (0.1, 0.8)
    assert spec.init_image is not None
    assert spec.control_image is not None
    assert spec.init_image.strength == 0.6
    assert spec.init_image.pixels[0, 0].tolist() == [0, 255, 0]
    assert spec.control_image.pixels[0, 0].tolist() == [255, 0, 0]
    assert spec.control_image.pixels.shape == (64, 64, 3)
    attempt.release_images()
    assert attempt.specs[0].control_image is None
    assert attempt.specs[0].init_image is None


def test_a_net_that_no_worker_holds_is_refused_by_name() -> None:
    offer = offer_of(_engine().info)
    request = JobRequest(prompt="a", controlnet="cany", control_image="inputs/edges.png")
    with pytest.raises(
        InvalidRequest, match="controlnet='cany': is no ControlNet that the workers "
    ):
        admit(request, {DEFAULT_MODEL: offer})
    assert list(offer.controlnets) == ["canny", "depth"]
    assert "controlnets" not in offer_of(FakeEngine().info).model_dump_json()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("canny", "'canny' is no ControlNet; write name=folder, as in canny=/nets/a"),
        ("a b=/nets/a", "the name 'a b' must be"),
        ("a=/x,a=/y", "two files have the name 'a'"),
    ],
)
def test_a_wrong_setting_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=f"IMAGEFLEET_CONTROLNET: .*{sentence}"):
        WorkerSettings.load(controlnet=text)


@pytest.mark.parametrize("name", ["guess_mode", "ip_adapter_image"])
def test_what_is_not_offered_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name}=.*: is not a parameter of a job"):
        JobRequest.parse({"prompt": "a", name: "x"})
