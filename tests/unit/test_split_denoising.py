"""Jobs that share the steps of an image: requests, messages, offers, and the files of latents."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
from safetensors.numpy import load, save

from imagefleet.producer.connection.input_images import check_image
from imagefleet.shared.errors import InvalidInput, InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.celery_message import job_message
from imagefleet.shared.jobs.message_arguments import pack, unpack
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.result import ImageResult, JobResult
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.engine.contract.image_use import ImageUse
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageSpec, Shape
from imagefleet.worker.engine.contract.latents_file import encode_latents
from imagefleet.worker.engine.contract.unfinished_latents import InputLatents, LatentFormat
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.images.encode_latents import encode_unfinished
from imagefleet.worker.images.metadata import image_metadata
from imagefleet.worker.jobs.attempt import offer_of, plan_attempt
from imagefleet.worker.jobs.input_images import InputImages
from imagefleet.worker.jobs.input_permits import image_source
from imagefleet.worker.outbound.address_policy import AllowList
from tests.support.latents import file_of_empty_tensors
from tests.support.records import result_of_one_image

INFO: Final = FakeEngine().info
OFFER: Final = offer_of(INFO)
SHAPE: Final = Shape(height=64, width=32)
SDXL: Final = LatentFormat(channels=4, pixels_per_latent=8, scaling="scaling_factor=0.13025")
VALUES: Final = np.random.default_rng(1).standard_normal((8, 4, 4), np.float32)
FILE: Final = encode_latents(VALUES, SDXL.scaling, {"prompt": "ein Kreis 🔴"})


def _request(**parameters: Any) -> JobRequest:
    return JobRequest.parse({"prompt": "a", "seed": 1, **parameters})


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"denoising_end": 0}, "denoising_end=0: must be greater than 0"),
        ({"denoising_end": 1}, "denoising_end=1: must be less than 1"),
        ({"denoising_end": float("nan")}, "denoising_end=nan: must be a finite number"),
        ({"denoising_end": "most"}, "denoising_end='most': must be a valid number"),
        ({"denoising_start": 0.5}, "denoising_start=0.5: needs latents"),
        ({"latents": "a.safetensors"}, "latents='a.safetensors': needs denoising_start"),
        (
            {"latents": "/tmp/a.safetensors", "denoising_start": 0.5},
            "latents='/tmp/a.safetensors': must be an http(s) address, or the key or URL",
        ),
        (
            {"latents": "a", "denoising_start": 0.5, "image": "a.png"},
            "latents='a': takes the place of image; leave one out",
        ),
        (
            {"latents": "a", "denoising_start": 0.5, "strength": 0.5},
            "strength=0.5: needs an image",
        ),
        (
            {"latents": "a", "denoising_start": 0.5, "denoising_end": 0.5},
            "denoising_end=0.5: must be above denoising_start=0.5",
        ),
        (
            {"image": "a.png", "mask_image": "b.png", "denoising_end": 0.5},
            "denoising_end=0.5: cannot be used with mask_image",
        ),
        (
            {"denoising_end": 0.5, "format": "webp"},
            "format='webp': has no effect with denoising_end, which makes a safetensors file",
        ),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(
    parameters: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _request(**parameters)
    assert str(refused.value).startswith(sentence)


def test_only_such_a_job_is_sent_as_a_version_that_older_workers_do_not_read() -> None:
    plain = pack(_request(clip_skip=1))
    assert plain["version"] == 3
    assert not {"latents", "denoising_start", "denoising_end"} & plain["request"].keys()
    for parameters in (
        {"denoising_end": 0.8},
        {"latents": "jobs/a/0.safetensors", "denoising_start": 0.8, "clip_skip": 2},
    ):
        request = _request(**parameters)
        sent = pack(request)
        assert sent["version"] == 4
        assert unpack(json.loads(json.dumps(sent)), "j") == request


@pytest.mark.parametrize(
    ("parameters", "steps"),
    [
        ({"denoising_end": 0.8}, 40),
        ({"latents": "a", "denoising_start": 0.8}, 10),
        ({"latents": "a", "denoising_start": 0.999}, 1),
        ({"latents": "a", "denoising_start": 0.4, "denoising_end": 0.8}, 20),
        ({"image": "a.png", "strength": 0.5, "denoising_end": 0.8}, 15),
    ],
)
def test_a_message_estimates_the_steps_as_the_worker_does(
    parameters: dict[str, Any], steps: int
) -> None:
    request = _request(num_inference_steps=50, **parameters)
    assert json.loads(job_message("j", request, "q"))["headers"]["steps"] == steps
    attempt = plan_attempt("j", request, INFO)
    if request.image is not None:
        pixels = np.zeros((64, 64, 3), np.uint8)
        attempt.start_from(InitImage(pixels=pixels, strength=0.5, digest=""))
    elif request.denoising_start is not None:
        start = request.denoising_start
        attempt.start_from(InputLatents(values=VALUES, denoising_start=start, digest=""))
    assert attempt.specs[0].steps == steps


def test_a_strength_that_leaves_no_step_is_refused_before_it_is_sent() -> None:
    request = _request(image="a.png", strength=0.01, denoising_end=0.8, num_inference_steps=10)
    with pytest.raises(InvalidRequest, match=r"^strength=0.01: leaves none of 10 steps"):
        admit(request, {DEFAULT_MODEL: OFFER})


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"denoising_end": 0.8}, "denoising_end=0.8"),
        ({"latents": "a", "denoising_start": 0.8}, "latents='a'"),
    ],
)
def test_an_offer_of_an_older_worker_takes_no_such_job(
    parameters: dict[str, Any], field: str
) -> None:
    request = _request(**parameters)
    admit(request, {DEFAULT_MODEL: OFFER})
    older = Offer.model_validate_json(OFFER.model_dump_json(exclude={"splits_denoising"}))
    with pytest.raises(InvalidRequest, match=rf"^{field}: is not a parameter of the model fake$"):
        admit(request, {DEFAULT_MODEL: older})


def test_latents_are_enough_for_a_model_that_needs_an_image() -> None:
    refiner = offer_of(replace(INFO, image_use=ImageUse(required=("image",))))
    admit(_request(latents="a", denoising_start=0.8), {DEFAULT_MODEL: refiner})
    with pytest.raises(
        InvalidRequest, match=r"^image=None: is missing; every job of the model fake needs"
    ):
        admit(_request(denoising_end=0.8), {DEFAULT_MODEL: refiner})


def test_latents_wait_for_their_permit_like_an_image() -> None:
    source = image_source({"latents": "https://Host.example/a", "tenant": "gold"})
    assert source is not None
    assert (source.tenant, source.hosts) == ("gold", frozenset({"host.example"}))


def test_a_file_of_latents_is_that_of_diffusers_and_the_same_each_time() -> None:
    [(name, values)] = load(FILE).items()
    assert (name, values.shape) == ("latents", (1, 4, 8, 4))
    np.testing.assert_array_equal(np.moveaxis(values[0], 0, -1), VALUES)
    again = encode_latents(VALUES, SDXL.scaling, {"prompt": "ein Kreis 🔴"})
    assert hashlib.sha256(again).digest() == hashlib.sha256(FILE).digest()
    with pytest.raises(ValueError, match=r"^latents are uint8\[8, 4, 3\], not float32\[h, w, c\]"):
        encode_unfinished(np.zeros((8, 4, 3), np.uint8), SDXL, {})


def _fetch(data: bytes, latents: LatentFormat | None = SDXL) -> InputLatents:
    store = MemoryStore()
    store.put("jobs/a/0.safetensors", data, "application/octet-stream")
    request = _request(latents="jobs/a/0.safetensors", denoising_start=0.8)
    (fetched,) = InputImages(store, AllowList(), latents=latents).fetch(request, SHAPE)
    assert isinstance(fetched, InputLatents)
    return fetched


def test_a_worker_reads_the_latents_of_a_job() -> None:
    fetched = _fetch(FILE)
    np.testing.assert_array_equal(fetched.values, VALUES)
    assert fetched.denoising_start == 0.8
    assert fetched.digest == f"sha256:{hashlib.sha256(VALUES.tobytes()).hexdigest()}"


def test_a_worker_reads_latents_that_diffusers_has_left() -> None:
    by_diffusers = save({"latents": np.ascontiguousarray(np.moveaxis(VALUES, -1, 0)[None])})
    np.testing.assert_array_equal(_fetch(by_diffusers).values, VALUES)


def _tensors(**tensors: Any) -> bytes:
    return save({name: np.asarray(values) for name, values in tensors.items()})


WRONG: Final[Mapping[str, tuple[bytes, str]]] = {
    "no file": (b"\x89PNG", "cannot be read as safetensors"),
    "cut short": (FILE[:-1], "cannot be read as safetensors"),
    "header too long": (b"\xff" * 16, "cannot be read as safetensors"),
    "long header": (
        (262_145).to_bytes(8, "little") + file_of_empty_tensors(10)[8:].ljust(262_300),
        "have a header of 262,145 bytes; must be at most 262,144",
    ),
    "long header of few bytes": (
        (300_000).to_bytes(8, "little") + b"{" + b" " * 260_000,
        "cannot be read as safetensors",
    ),
    "file too large": (file_of_empty_tensors(330_000), "must be at most 262,664 bytes"),
    "other tensor": (_tensors(image=VALUES), "must hold one tensor named latents; there are image"),
    "two tensors": (_tensors(latents=VALUES, image=VALUES), "one tensor named latents; there are"),
    "other type": (
        _tensors(latents=np.zeros((1, 4, 8, 4), np.float16)),
        "are float16[1, 4, 8, 4]; must be float32[1, 4, 8, 4] for an image of 64x32",
    ),
    "other size": (
        _tensors(latents=np.zeros((1, 4, 4, 8), np.float32)),
        "are float32[1, 4, 4, 8]; must be float32[1, 4, 8, 4] for an image of 64x32",
    ),
    "not finite": (
        _tensors(latents=np.full((1, 4, 8, 4), np.nan, np.float32)),
        "contain NaN, infinity or values beyond 1e+06",
    ),
    "too large": (
        _tensors(latents=np.full((1, 4, 8, 4), -2e6, np.float32)),
        "contain NaN, infinity or values beyond 1e+06",
    ),
    "other model": (
        encode_latents(VALUES, "scaling_factor=0.18215", {}),
        "are of a model with scaling_factor=0.18215; those of this model have scaling_factor=0.1",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_not_the_latents_of_this_model_is_refused(name: str) -> None:
    data, sentence = WRONG[name]
    with pytest.raises(InvalidInput) as refused:
        _fetch(data)
    assert str(refused.value).startswith("latents: ")
    assert sentence in str(refused.value)


def test_a_model_that_takes_no_latents_says_so() -> None:
    with pytest.raises(InvalidInput, match=r"^latents: this model takes none$"):
        _fetch(FILE, latents=None)


def test_a_client_uploads_a_file_of_latents_and_no_other_file() -> None:
    checked = check_image("latents", FILE)
    digest = hashlib.sha256(FILE).hexdigest()
    assert checked.key == f"inputs/{digest}.safetensors"
    with pytest.raises(InvalidRequest, match="must be a safetensors file"):
        check_image("latents", b"\x89PNG\r\n\x1a\n")


def test_the_metadata_say_where_denoising_began_and_ended() -> None:
    start = InputLatents(values=VALUES, denoising_start=0.4, digest="sha256:1")
    spec = ImageSpec(
        prompt="a",
        num_inference_steps=10,
        guidance_scale=3.0,
        input_latents=start,
        denoising_end=0.8,
    )
    metadata = image_metadata(job_id="j", spec=spec, shape=SHAPE, info=INFO)
    assert (metadata["denoising_start"], metadata["denoising_end"]) == (0.4, 0.8)
    assert metadata["original"] == "sha256:1"
    plain = replace(spec, input_latents=None, denoising_end=None)
    without = image_metadata(job_id="j", spec=plain, shape=SHAPE, info=INFO)
    assert not {"denoising_start", "denoising_end", "original"} & without.keys()


def test_a_result_of_latents_survives_its_record_and_is_no_image(tmp_path: Any) -> None:
    image = result_of_one_image().images[0]
    latents = ImageResult(
        **image.model_dump()
        | {"format": "safetensors", "key": "jobs/j/0.safetensors", "pixel_sha256": None}
    )
    result = result_of_one_image().model_copy(update={"images": (latents,)})
    assert JobResult.from_record(result.record_fields()) == result
    with pytest.raises(InvalidRequest, match="holds latents"):
        latents.open()
    with pytest.raises(InvalidRequest, match=r"the image is a safetensors file$"):
        latents.save(tmp_path / "a.png")
