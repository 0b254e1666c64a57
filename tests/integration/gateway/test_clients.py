"""The requests of programs that people use, as their code sends them.

Each docstring names the file of the program that sends the request. The fleet is that of an
operator who follows the table of clients in docs/http.md: keys, and the names that clients insist
on.
"""

import base64
import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any, Final

import httpx
import pytest
from PIL import Image

from imagefleet import Client
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.gateway import GatewayFleet, fleet_with_gateways

SIZES: Final = "512x512,1024x1024"
ALIASES: Final = "dall-e-2=fake,dall-e-3=fake,gpt-image-1=fake"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, redis_server: LocalRedisServer
) -> Iterator[GatewayFleet]:
    with fleet_with_gateways(
        tmp_path_factory.mktemp("fleet"),
        redis_server.url,
        IMAGEFLEET_SHAPES=SIZES,
        IMAGEFLEET_HTTP_MODELS=ALIASES,
    ) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def key(fleet: GatewayFleet) -> str:
    scopes = [Scope.SUBMIT, Scope.READ]
    return ApiKeys(fleet.producer.connection).create("chat", "chat", scopes)


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=900) as client:
        yield client


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _basic(key: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'chat:{key}'.encode()).decode()}"}


def _ok(answer: httpx.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json()


def _image(text: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(text, validate=True)))


def _png(side: int = 64) -> bytes:
    file = BytesIO()
    Image.new("RGB", (side, side), "red").save(file, "PNG")
    return file.getvalue()


def _request_of(producer: Client, answer: httpx.Response) -> JobRequest:
    """Return what the job of an answer was asked for."""
    name = answer.headers["x-imagefleet-job"]
    [status] = [each for each in producer.jobs() if each.id.endswith(name)]
    return status.request


OPEN_WEBUI_USER: Final = {
    "X-OpenWebUI-User-Name": "Ada",
    "X-OpenWebUI-User-Id": "4f1c",
    "X-OpenWebUI-User-Email": "ada@example.org",
    "X-OpenWebUI-User-Role": "user",
}


def test_open_webui_generates_by_the_openai_engine(
    fleet: GatewayFleet, key: str, http: httpx.Client
) -> None:
    """backend/open_webui/routers/images.py, `image_generations`: it asks for base64, and merges
    IMAGES_OPENAI_API_PARAMS into the body."""
    body = {
        "model": "dall-e-3",
        "prompt": "a red circle",
        "n": 2,
        "size": "512x512",
        "response_format": "b64_json",
        "seed": 7,
        "num_inference_steps": 3,
    }
    headers = {**_bearer(key), "Content-Type": "application/json", **OPEN_WEBUI_USER}
    answer = http.post(f"{fleet.guarded_url}/v1/images/generations", json=body, headers=headers)
    images = [_image(each["b64_json"]) for each in _ok(answer)["data"]]
    assert [each.size for each in images] == [(512, 512)] * 2
    request = _request_of(fleet.producer, answer)
    assert (request.seed, request.num_inference_steps, request.model) == (7, 3, "fake")


def test_open_webui_fetches_an_address_with_its_own_headers(
    fleet: GatewayFleet, key: str, http: httpx.Client
) -> None:
    """backend/open_webui/routers/images.py, `get_image_data`: it sends the headers of its request,
    without the content type, and wants a content type of an image."""
    body = {"model": "fake", "prompt": "a", "n": 1, "size": "512x512", "response_format": "url"}
    headers = {**_bearer(key), **OPEN_WEBUI_USER}
    answer = http.post(f"{fleet.guarded_url}/v1/images/generations", json=body, headers=headers)
    [image] = _ok(answer)["data"]
    file = http.get(image["url"], headers=headers)
    assert file.is_success
    assert file.headers["content-type"].split("/")[0] == "image"
    assert Image.open(BytesIO(file.content)).size == (512, 512)


@pytest.mark.parametrize("field", ["image", "image[]"])
def test_open_webui_edits_by_the_openai_engine(
    fleet: GatewayFleet, key: str, http: httpx.Client, field: str
) -> None:
    """backend/open_webui/routers/images.py, `image_edits`: every field of the form is a text; the
    file is `image`, or `image[]` if it has a list."""
    form = {
        "model": "gpt-image-1",
        "prompt": "a blue circle",
        "n": "1",
        "size": "512x512",
        "response_format": "b64_json",
    }
    files = {field: ("4f1c.png", _png(), "image/png")}
    answer = http.post(
        f"{fleet.guarded_url}/v1/images/edits", data=form, files=files, headers=_bearer(key)
    )
    [image] = _ok(answer)["data"]
    assert _image(image["b64_json"]).size == (512, 512)
    assert _request_of(fleet.producer, answer).image is not None


def test_open_webui_generates_by_the_automatic1111_engine(
    fleet: GatewayFleet, key: str, http: httpx.Client
) -> None:
    """backend/open_webui/routers/images.py, `set_image_model`, `get_models` and
    `image_generations`: it sets the model by sending all options back, and names none later."""
    url, headers = f"{fleet.guarded_url}/sdapi/v1", _basic(key)
    options = _ok(http.get(f"{url}/options", headers=headers))
    titles = [each["title"] for each in _ok(http.get(f"{url}/sd-models", headers=headers))]
    assert options["sd_model_checkpoint"] in titles
    options["sd_model_checkpoint"] = "dall-e-3"
    assert http.post(f"{url}/options", json=options, headers=headers).is_success
    body = {
        "prompt": "a red circle",
        "batch_size": 2,
        "width": 512,
        "height": 512,
        "steps": 50,
        "negative_prompt": "blue",
        "cfg_scale": 6.5,  # of AUTOMATIC1111_PARAMS
        "sampler_name": "DDIM",
        "scheduler": "Automatic",
    }
    answer = http.post(f"{url}/txt2img", json=body, headers=headers)
    found = _ok(answer)
    assert [_image(each).size for each in found["images"]] == [(512, 512)] * 2
    assert isinstance(found["info"], str)
    request = _request_of(fleet.producer, answer)
    assert (request.model, request.num_inference_steps, request.guidance_scale) == ("fake", 50, 6.5)


def test_librechat_generates_and_edits_by_the_openai_tool(
    fleet: GatewayFleet, key: str, http: httpx.Client
) -> None:
    """api/app/clients/tools/structured/OpenAIImageTools.js: generations by the client of OpenAI for
    JavaScript, without a response format; edits by axios, as `image[]`."""
    body = {
        "model": "gpt-image-1",
        "prompt": "a red circle",
        "n": 1,
        "background": "auto",
        "output_format": "png",
        "quality": "auto",
        "size": "auto",
    }
    stainless = {
        "X-Stainless-Lang": "js",
        "X-Stainless-Retry-Count": "0",
        "User-Agent": "OpenAI/JS 5.10.1",
    }
    url, headers = f"{fleet.guarded_url}/v1/images", _bearer(key)
    answer = http.post(f"{url}/generations", json=body, headers={**headers, **stainless})
    [image] = _ok(answer)["data"]
    assert _image(image["b64_json"]).size == (512, 512)
    form = {"model": "gpt-image-1", "prompt": "blue", "quality": "auto", "size": "auto"}
    files = {"image[]": ("img-1.png", _png(), "image/png")}
    edited = http.post(f"{url}/edits", data=form, files=files, headers=headers)
    assert _image(_ok(edited)["data"][0]["b64_json"]).size == (512, 512)


def test_librechat_generates_by_the_stable_diffusion_tool(
    fleet: GatewayFleet, key: str, http: httpx.Client
) -> None:
    """api/app/clients/tools/structured/StableDiffusion.js: axios takes the key from the address,
    `http://chat:KEY@host`; `info` is a text of JSON, whose infotext goes into the file."""
    url = httpx.URL(f"{fleet.guarded_url}/sdapi/v1/txt2img")
    body = {
        "prompt": "a red circle",
        "negative_prompt": "blue",
        "cfg_scale": 4.5,
        "steps": 22,
        "width": 1024,
        "height": 1024,
    }
    found = _ok(http.post(url.copy_with(username="chat", password=key), json=body))
    assert _image(found["images"][0]).size == (1024, 1024)
    info = json.loads(found["info"])
    assert (info["width"], info["height"], type(info["seed"])) == (1024, 1024, int)
    assert (
        info["infotexts"][0].split("\n")[-1].startswith("Steps: 22, Sampler: DDIM, CFG scale: 4.5")
    )


def test_sillytavern_connects_and_generates_by_the_automatic1111_source(
    fleet: GatewayFleet, key: str, http: httpx.Client
) -> None:
    """src/endpoints/stable-diffusion.js (`/ping` to `/generate`), which forwards the body of
    `generateAutoImage` in public/scripts/extensions/stable-diffusion/index.js, with its address and
    credentials."""
    url, headers = f"{fleet.guarded_url}/sdapi/v1", _basic(key)

    def names(path: str, field: str = "name") -> list[str]:
        return [each[field] for each in _ok(http.get(f"{url}/{path}", headers=headers))]

    assert http.get(f"{url}/options", headers=headers).is_success
    assert names("upscalers")[:1] == ["None"]
    assert names("latent-upscale-modes") == names("sd-vae", "model_name") == []
    sampler, scheduler = names("samplers")[0], names("schedulers")[0]
    model = names("sd-models", "title")[0]
    json_type = {**headers, "Content-Type": "application/json"}
    choice = json.dumps({"sd_model_checkpoint": model})
    assert http.post(f"{url}/options", content=choice, headers=json_type).is_success
    progress = _ok(http.get(f"{url}/progress", headers=headers))
    assert (progress["progress"], progress["state"]["job_count"]) == (0, 0)  # the model is loaded
    body = {
        "url": fleet.guarded_url,
        "auth": f"chat:{key}",
        "prompt": "a red circle",
        "negative_prompt": "blue",
        "sampler_name": sampler,
        "scheduler": scheduler,
        "steps": 20,
        "cfg_scale": 7,
        "width": 512,
        "height": 512,
        "restore_faces": False,
        "enable_hr": False,
        "hr_upscaler": "Latent",
        "hr_scale": 2,
        "denoising_strength": 0.7,
        "hr_second_pass_steps": 0,
        "override_settings": {"CLIP_stop_at_last_layers": 1},
        "override_settings_restore_afterwards": True,
        "clip_skip": 1,
        "save_images": True,
        "send_images": True,
        "do_not_save_grid": False,
        "do_not_save_samples": False,
    }
    answer = http.post(f"{url}/txt2img", json=body, headers=headers)
    assert _image(_ok(answer)["images"][0]).size == (512, 512)
    assert key not in answer.text
    request = _request_of(fleet.producer, answer)
    assert (request.strength, request.clip_skip, request.scheduler) == (None, None, "ddim")
    assert http.post(f"{url}/interrupt", headers=headers).is_success  # without a body


def test_sillytavern_connects_and_generates_by_the_sdcpp_source(
    fleet: GatewayFleet, http: httpx.Client
) -> None:
    """src/endpoints/stable-diffusion.js (`sdcpp`): it asks which methods there are, lists models in
    OpenAI's form, and generates in AUTOMATIC1111's, all without a key."""
    asked = http.options(f"{fleet.open_url}/v1/images/generations")
    assert asked.is_success
    assert not [each for each in asked.headers if each.startswith("access-control")]
    models = [each["id"] for each in _ok(http.get(f"{fleet.open_url}/v1/models"))["data"]]
    assert models[0] == "fake"
    body = {
        "prompt": "a red circle",
        "negative_prompt": "blue",
        "width": 512,
        "height": 512,
        "steps": 20,
        "cfg_scale": 7,
        "seed": -1,
        "batch_size": 1,
        "scheduler": "discrete",
        "clip_skip": 1,
    }
    answer = http.post(f"{fleet.open_url}/sdapi/v1/txt2img", json=body)
    assert _image(_ok(answer)["images"][0]).size == (512, 512)


def test_a_web_page_of_another_origin_may_not_ask(fleet: GatewayFleet, http: httpx.Client) -> None:
    headers = {
        "Origin": "https://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    for url in (fleet.open_url, fleet.guarded_url):
        asked = http.options(f"{url}/v1/images/generations", headers=headers)
        assert "access-control-allow-origin" not in asked.headers


@pytest.mark.parametrize("as_url", [False, True])
def test_n8n_lists_models_and_generates(
    fleet: GatewayFleet, key: str, http: httpx.Client, as_url: bool
) -> None:
    """packages/@n8n/nodes-langchain/nodes/vendors/OpenAi: methods/listSearch.ts lists ids that
    begin with dall- or gpt-image, v2/actions/image/generate.operation.ts generates."""
    listed = _ok(http.get(f"{fleet.guarded_url}/v1/models", headers=_bearer(key)))["data"]
    usable = [each["id"] for each in listed if each["id"].startswith(("dall-", "gpt-image"))]
    assert sorted(usable) == ["dall-e-2", "dall-e-3", "gpt-image-1"]
    body = {
        "prompt": "a red circle",
        "model": "dall-e-3",
        "response_format": "url" if as_url else "b64_json",
        "quality": "standard",
        "size": "1024x1024",
        "style": "vivid",
    }
    answer = http.post(
        f"{fleet.guarded_url}/v1/images/generations", json=body, headers=_bearer(key)
    )
    [image] = _ok(answer)["data"]
    content = http.get(image["url"]).content if as_url else base64.b64decode(image["b64_json"])
    assert Image.open(BytesIO(content)).size == (1024, 1024)


def test_n8n_edits_an_image(fleet: GatewayFleet, key: str, http: httpx.Client) -> None:
    """packages/@n8n/nodes-langchain/nodes/vendors/OpenAi/v2/actions/image/edit.operation.ts"""
    form = {
        "prompt": "a blue circle",
        "model": "dall-e-2",
        "n": "1",
        "size": "512x512",
        "response_format": "url",
    }
    files = {"image": ("data.png", _png(), "image/png")}
    answer = http.post(
        f"{fleet.guarded_url}/v1/images/edits", data=form, files=files, headers=_bearer(key)
    )
    [image] = _ok(answer)["data"]
    assert Image.open(BytesIO(http.get(image["url"]).content)).size == (512, 512)
