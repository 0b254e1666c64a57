"""AUTOMATIC1111's API against a gateway, a worker and Redis."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import httpx
import pytest
from PIL import Image

from imagefleet import Client
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.offers import OfferRegistry
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.gateway import GatewayFleet, fleet_with_gateways, start_gateway
from tests.support.processes import StartWorker, Worker, until

SLOW = {"prompt": "slow", "steps": 1_000}
"""A job that lasts until it is cancelled."""


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, redis_server: LocalRedisServer
) -> Iterator[GatewayFleet]:
    with fleet_with_gateways(
        tmp_path_factory.mktemp("fleet"),
        redis_server.url,
        IMAGEFLEET_MODEL="fake:seconds=0.1,capacity=8",
        IMAGEFLEET_BATCHING="continuous",  # no job waits for the end of a slow one
        IMAGEFLEET_JOB_LORA="style=/loras/style.safetensors",
        IMAGEFLEET_PROMPT_CHUNKS="4",
        IMAGEFLEET_MAX_NUM_INFERENCE_STEPS="1000",
    ) as fleet:
        yield fleet


@pytest.fixture
def webui(fleet: GatewayFleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{fleet.open_url}/sdapi/v1", timeout=900) as client:
        yield client


def _with_key(url: str, producer: Client, tenant: str) -> httpx.Client:
    """Return a client that sends a new key as the password of Basic, as the web UI's do."""
    key = ApiKeys(producer.connection).create(tenant, tenant, [Scope.SUBMIT, Scope.READ])
    return httpx.Client(base_url=f"{url}/sdapi/v1", auth=("any", key), timeout=900)


def _newest(fleet: GatewayFleet) -> JobStatus:
    """Return the job that was submitted last."""
    return max(fleet.producer.jobs(), key=lambda each: each.submitted_at)


def _count(fleet: GatewayFleet) -> int:
    return len(list(fleet.producer.jobs()))


def _get(client: httpx.Client, path: str) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _post(client: httpx.Client, path: str, body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _image(text: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(text)))


def _base64(image: Image.Image) -> str:
    file = BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_images_come_in_base64_with_their_parameters_as_a_text(
    webui: httpx.Client, fleet: GatewayFleet
) -> None:
    fields = {
        "prompt": "a (red:1.2) circle <lora:style:0.5>",
        "negative_prompt": "blue",
        "steps": 3,
        "cfg_scale": 6.5,
        "sampler_name": "DDIM",
        "scheduler": "automatic",
        "seed": 7,
        "n_iter": 2,
        "batch_size": 1,
        "override_settings": {"CLIP_stop_at_last_layers": 2},
        "auth": "user:secret",
    }
    answer = _post(webui, "/txt2img", fields)
    job = _newest(fleet)
    stored = job.request.model_dump()
    assert (
        stored
        | {
            "prompt": "a (red:1.2) circle",
            "negative_prompt": "blue",
            "num_inference_steps": 3,
            "guidance_scale": 6.5,
            "scheduler": "ddim",
            "seed": 7,
            "num_images_per_prompt": 2,
            "clip_skip": 1,
            "loras": (("style", 0.5),),
            "prompt_weighting": True,
        }
        == stored
    )
    assert job.result is not None
    files = [base64.b64decode(each) for each in answer["images"]]
    assert files == [each.read() for each in job.result.images]
    info = json.loads(answer["info"])
    assert info["infotexts"] == [Image.open(BytesIO(each)).info["parameters"] for each in files]
    assert info["all_seeds"] == [7, 7]
    assert info["seed"] == 7
    assert (info["width"], info["height"], info["steps"], info["cfg_scale"]) == (64, 64, 3, 6.5)
    assert (info["sampler_name"], info["clip_skip"]) == ("DDIM", 2)
    assert answer["parameters"]["sampler_name"] == "DDIM"
    assert "secret" not in json.dumps(answer)


def test_what_a_request_leaves_out_is_the_models(webui: httpx.Client, fleet: GatewayFleet) -> None:
    before = _count(fleet)
    answer = _post(webui, "/txt2img", {"prompt": "a", "seed": -1})
    info = json.loads(answer["info"])
    assert (info["steps"], info["cfg_scale"], info["sampler_name"]) == (4, 7.5, "DDIM")
    again = json.loads(_post(webui, "/txt2img", {"prompt": "a", "seed": -1})["info"])
    assert again["seed"] != info["seed"]  # an equal request is another job
    assert _count(fleet) == before + 2


def test_images_have_the_format_of_the_settings_and_are_left_out_on_request(
    webui: httpx.Client,
) -> None:
    for asked, made in {"png": "PNG", "jpg": "JPEG", "webp": "WEBP"}.items():
        settings = {"samples_format": asked}
        answer = _post(webui, "/txt2img", {"prompt": "a", "override_settings": settings})
        [text] = answer["images"]
        assert _image(text).format == made
        assert json.loads(answer["info"])["infotexts"][0].startswith("a\nSteps: 4")
    answer = _post(webui, "/txt2img", {"prompt": "a", "send_images": False})
    assert answer["images"] == []
    assert json.loads(answer["info"])["infotexts"]


def test_an_image_is_changed_where_the_mask_is_white(
    webui: httpx.Client, fleet: GatewayFleet
) -> None:
    mask = Image.new("L", (64, 64), 0)
    mask.paste(255, (0, 0, 32, 64))
    fields = {
        "prompt": "a",
        "init_images": [f"data:image/png;base64,{_base64(Image.new('RGB', (64, 64), 'red'))}"],
        "mask": _base64(mask),
        "denoising_strength": 0.5,
        "mask_blur": 4,
        "inpainting_fill": 1,
        "inpaint_full_res": False,
    }
    answer = _post(webui, "/img2img", fields)
    assert _image(answer["images"][0]).size == (64, 64)
    assert json.loads(answer["info"])["denoising_strength"] == 0.5
    assert "init_images" not in answer["parameters"]
    job = _newest(fleet)
    store = fleet.producer.connection.store()
    stored = Image.open(BytesIO(store.get(job.request.mask_image or "")))
    assert (stored.getpixel((10, 10)), stored.getpixel((50, 10))) == (255, 0)
    assert job.request.strength == 0.5
    assert job.request.image is not None


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/txt2img", {}, "prompt"),
    ("/txt2img", {"prompt": "a", "steps": 1_001}, "steps"),
    ("/txt2img", {"prompt": "a", "sampler_name": "Euler a"}, "sampler_name"),
    ("/txt2img", {"prompt": "a", "enable_hr": True}, "enable_hr"),
    ("/txt2img", {"prompt": "a", "n_iter": 65}, "n_iter"),
    ("/txt2img", {"prompt": "a", "width": 72, "height": 72}, "height x width"),
    ("/txt2img", {"prompt": "a <lora:other:1>"}, "loras"),
    ("/txt2img", {"prompt": "a", "model": "other"}, "model"),
    ("/txt2img", {"prompt": "a", "model": 7}, "model"),
    ("/txt2img", {"prompt": "a", "n_iter": 9, "batch_size": 8}, "n_iter × batch_size"),
    ("/txt2img", {"prompt": "a", "clip_skip": 99}, "clip_skip"),
    ("/img2img", {"prompt": "a"}, "init_images"),
    ("/options", {"sd_model_checkpoint": "other"}, "sd_model_checkpoint"),
    ("/options", {"CLIP_stop_at_last_layers": 2}, "CLIP_stop_at_last_layers"),
]


def test_a_wrong_field_is_named_in_the_web_uis_form(
    webui: httpx.Client, fleet: GatewayFleet
) -> None:
    before = _count(fleet)
    for path, fields, name in WRONG:
        answer = webui.post(path, json=fields)
        error = answer.json()
        assert answer.status_code == 400, (fields, error)
        assert (error["error"], error["detail"]) == ("invalid_request", error["errors"])
        assert error["detail"].startswith(f"{name}="), error
    assert _count(fleet) == before
    unknown = webui.get("/server-kill")
    assert (unknown.status_code, unknown.json()["error"]) == (404, "not_found")


def test_models_samplers_and_loras_are_listed(webui: httpx.Client) -> None:
    [model] = _get(webui, "/sd-models")
    assert (model["title"], model["model_name"], model["sha256"]) == ("fake", "fake", "0" * 64)
    assert [each["name"] for each in _get(webui, "/samplers")] == ["DDIM"]
    assert [each["name"] for each in _get(webui, "/schedulers")] == ["automatic"]
    assert [each["name"] for each in _get(webui, "/loras")] == ["style"]
    assert [each["name"] for each in _get(webui, "/upscalers")] == ["None"]
    assert _get(webui, "/sd-vae") == _get(webui, "/latent-upscale-modes") == []


def test_a_model_that_a_key_sets_is_used_by_this_key_alone(
    start: StartWorker, worker: Worker, producer: Client
) -> None:
    guarded = start_gateway(start, IMAGEFLEET_HTTP_REQUIRE_KEYS="true")
    other = start(
        IMAGEFLEET_MODEL="fake:seconds=0.02,name=other", IMAGEFLEET_SERVES_DEFAULT="false"
    )
    other.await_log("ready after")
    second_gateway = start_gateway(start, IMAGEFLEET_HTTP_REQUIRE_KEYS="true")
    default, chosen = "fake", "other"
    with _with_key(guarded.url, producer, "gold") as gold:
        assert _get(gold, "/options")["sd_model_checkpoint"] == default
        options = {**_get(gold, "/options"), "sd_model_checkpoint": chosen}  # as Open WebUI does
        assert _post(gold, "/options", options) is None
        assert _get(gold, "/options")["sd_model_checkpoint"] == chosen
        gold.base_url = f"{second_gateway.url}/sdapi/v1"
        assert json.loads(_post(gold, "/txt2img", {"prompt": "a"})["info"])["sd_model_name"] == (
            chosen
        )
    with _with_key(guarded.url, producer, "silver") as silver:
        assert _get(silver, "/options")["sd_model_checkpoint"] == default
        info = json.loads(_post(silver, "/txt2img", {"prompt": "a"})["info"])
        assert info["sd_model_name"] == default


def _until_running(client: httpx.Client) -> Any:
    """Return the progress once a job of the client has done steps."""
    until(lambda: _get(client, "/progress")["state"]["sampling_step"] > 0)
    return _get(client, "/progress")


def test_progress_and_interruption_concern_the_jobs_of_the_key_alone(
    fleet: GatewayFleet,
) -> None:
    with (
        _with_key(fleet.guarded_url, fleet.producer, "gold") as gold,
        _with_key(fleet.guarded_url, fleet.producer, "silver") as silver,
        ThreadPoolExecutor(2) as pool,
    ):
        idle = _get(gold, "/progress")
        assert (idle["progress"], idle["state"]["job_count"]) == (0, 0)
        of_gold = pool.submit(gold.post, "/txt2img", json={**SLOW, "preview": True})
        of_silver = pool.submit(silver.post, "/txt2img", json=SLOW)
        progress = _until_running(gold)
        assert 0 < progress["progress"] < 1
        assert progress["eta_relative"] > 0
        assert (progress["state"]["job_count"], progress["state"]["sampling_steps"]) == (1, 1_000)
        until(lambda: _get(gold, "/progress")["current_image"])
        assert _image(_get(gold, "/progress")["current_image"]).size > (0, 0)
        assert _get(gold, "/progress?skip_current_image=true")["current_image"] is None
        _until_running(silver)
        assert gold.post("/interrupt").status_code == 200
        answer = of_gold.result()
        assert (answer.status_code, answer.json()["error"]) == (409, "job_cancelled")
        assert _get(gold, "/progress")["state"]["job_count"] == 0
        assert not of_silver.done()
        assert _get(silver, "/progress")["state"]["job_count"] == 1
        silver.post("/interrupt")
        assert of_silver.result().status_code == 409
    states = {each.request.tenant: each.state for each in fleet.producer.jobs()}
    assert (states["gold"], states["silver"]) == (State.CANCELLED, State.CANCELLED)


def test_a_job_is_interrupted_after_its_client_has_gone(
    webui: httpx.Client, fleet: GatewayFleet
) -> None:
    with pytest.raises(httpx.ReadTimeout):
        webui.post("/txt2img", json=SLOW, timeout=1)
    assert _get(webui, "/progress")["state"]["job_count"] == 1
    webui.post("/interrupt")
    until(lambda: _newest(fleet).state == State.CANCELLED)


def test_a_request_with_an_idempotency_key_makes_one_job(
    webui: httpx.Client, fleet: GatewayFleet
) -> None:
    headers, before = {"idempotency-key": "one"}, _count(fleet)
    first, second = (
        webui.post("/txt2img", json={"prompt": "a"}, headers=headers).json() for _ in range(2)
    )
    assert first["images"] == second["images"]
    assert _count(fleet) == before + 1


def test_a_key_is_asked_for_on_every_route(fleet: GatewayFleet) -> None:
    with httpx.Client(base_url=f"{fleet.guarded_url}/sdapi/v1") as nobody:
        for path in ("options", "progress", "sd-models", "samplers", "schedulers", "loras"):
            assert nobody.get(f"/{path}").status_code == 401, path
        for path in ("txt2img", "img2img", "options", "interrupt"):
            assert nobody.post(f"/{path}", json={}).status_code == 401, path


def test_the_cfg_scale_is_converted_for_a_model_without_guidance_at_0(
    webui: httpx.Client, fleet: GatewayFleet
) -> None:
    connection = fleet.producer.connection
    registry = OfferRegistry(connection.redis, connection.settings.namespace)
    offer = connection.offers()[DEFAULT_MODEL]

    def scale_of(**fields: float) -> float | None:
        _post(webui, "/txt2img", {"prompt": "a", "steps": 1, **fields})
        return _newest(fleet).request.guidance_scale

    registry.announce(offer.model_copy(update={"unguided_scale": 0.0}))
    try:  # a gateway reads offers again after some seconds
        until(lambda: scale_of(cfg_scale=6.5) == 5.5)
        assert scale_of(guidance_scale=6.5) == 6.5
        assert scale_of(cfg_scale=0.5) == 0.0
    finally:
        registry.announce(offer)
        until(lambda: scale_of(cfg_scale=6.5) == 6.5)
