"""OpenAI's own client against a gateway: images, streams, edits, errors and repeated requests."""

import asyncio
import base64
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from imagefleet import Client, JobStatus
from tests.support.gateway import GatewayFleet, GatewayProcess

NewJobs = Callable[[], list[JobStatus]]


@pytest.fixture
def gateway(fleet: GatewayFleet) -> GatewayProcess:
    return fleet.open_gateway


@pytest.fixture
def producer(fleet: GatewayFleet) -> Client:
    return fleet.producer


@pytest.fixture
def new_jobs(producer: Client) -> NewJobs:
    """Return a function that lists the jobs of this test."""
    earlier = {job.id for job in producer.jobs()}
    return lambda: [job for job in producer.jobs() if job.id not in earlier]


@pytest.fixture
def client_of_openai(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any") as client:
        yield client


def _image(text: str | None) -> Image.Image:
    assert text is not None
    return Image.open(BytesIO(base64.b64decode(text)))


def _png(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_an_image_comes_in_base64_unless_an_address_is_asked_for(
    client_of_openai: openai.OpenAI, new_jobs: NewJobs
) -> None:
    answer = client_of_openai.images.generate(prompt="a red circle", n=2, size="64x64")
    assert [_image(each.b64_json).size for each in answer.data or ()] == [(64, 64)] * 2
    [job] = new_jobs()
    assert (job.request.prompt, job.request.num_images_per_prompt) == ("a red circle", 2)
    assert job.result is not None
    assert base64.b64decode((answer.data or [])[1].b64_json or "") == job.result.images[1].read()


def test_an_address_opens_with_and_without_a_key(client_of_openai: openai.OpenAI) -> None:
    answer = client_of_openai.images.generate(prompt="a", response_format="url")
    [image] = answer.data or []
    assert image.url is not None
    for headers in ({}, {"authorization": "Bearer any"}):
        file = httpx.get(image.url, headers=headers)
        assert file.headers["content-type"] == "image/png"
        assert "private" in file.headers["cache-control"]
        assert Image.open(BytesIO(file.content)).size == (64, 64)
    forged = image.url.replace("/0.png", "/1.png")
    assert httpx.get(forged).status_code == 403


def test_parameters_of_diffusers_stand_beside_those_of_openai(
    client_of_openai: openai.OpenAI, new_jobs: NewJobs
) -> None:
    more = {"seed": 7, "num_inference_steps": 3, "negative_prompt": "blue", "guidance_scale": 2.5}
    answer = client_of_openai.images.generate(
        prompt="a", size="auto", quality="high", user="u", output_format="webp", extra_body=more
    )
    assert _image((answer.data or [])[0].b64_json).format == "WEBP"
    [job] = new_jobs()
    stored = job.request.model_dump()
    assert {name: stored[name] for name in more} == more


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", "3x"),
        ("size", "72x72"),
        ("n", 0),
        ("model", "nobody-has-this"),
        ("background", "transparent"),
        ("num_inference_step", 3),
        ("seed", -1),
        ("prompt", ""),
    ],
)
def test_a_wrong_field_is_named(
    client_of_openai: openai.OpenAI, new_jobs: NewJobs, field: str, value: Any
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client_of_openai.images.generate(prompt="a", extra_body={field: value})
    assert str(value) in caught.value.message
    assert caught.value.param == field
    assert caught.value.request_id
    assert not new_jobs()


def test_a_stream_sends_previews_and_then_the_image(client_of_openai: openai.OpenAI) -> None:
    events = list(
        client_of_openai.images.generate(
            prompt="a", stream=True, partial_images=2, extra_body={"num_inference_steps": 100}
        )
    )
    assert events[-1].type == "image_generation.completed"
    assert _image(events[-1].b64_json).size == (64, 64)
    partial = events[:-1]
    assert [each.type for each in partial] == ["image_generation.partial_image"] * len(partial)


def test_only_the_transparent_part_of_a_mask_is_edited(
    client_of_openai: openai.OpenAI, producer: Client, new_jobs: NewJobs
) -> None:
    image = Image.new("RGB", (64, 64), "red")
    mask = Image.new("RGBA", (64, 64), (0, 0, 0, 255))
    mask.paste((0, 0, 0, 0), (0, 0, 32, 64))
    answer = client_of_openai.images.edit(
        prompt="a", image=_png(image), mask=_png(mask), size="64x64", n=1
    )
    assert _image((answer.data or [])[0].b64_json).size == (64, 64)
    [job] = new_jobs()
    assert job.request.image is not None
    store = producer.connection.store()
    stored = Image.open(BytesIO(store.get(job.request.mask_image or "")))
    assert (stored.getpixel((10, 10)), stored.getpixel((50, 10))) == (255, 0)


def test_models_are_listed(client_of_openai: openai.OpenAI) -> None:
    [model] = client_of_openai.models.list().data
    assert model.id == "fake"
    assert client_of_openai.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError):
        client_of_openai.models.retrieve("other")


def test_many_requests_wait_at_the_same_time(gateway: GatewayProcess, new_jobs: NewJobs) -> None:
    async def generate() -> int:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any") as client:
            one = client.images.generate(prompt="the same prompt")
            answers = await asyncio.gather(
                one, *(client.images.generate(prompt="the same prompt") for _ in range(19))
            )
            return len({(each.data or [])[0].b64_json for each in answers})

    assert asyncio.run(generate()) == 20  # another seed each
    assert len(new_jobs()) == 20


@pytest.mark.parametrize(
    ("beside", "field"),
    [
        ({"image": "https://images.example/a.png"}, "image"),
        ({"mask_image": "https://images.example/a.png"}, "mask_image"),
    ],
)
def test_an_edit_has_one_image_and_one_mask(
    gateway: GatewayProcess, beside: dict[str, str], field: str
) -> None:
    url = f"{gateway.url}/v1/images/edits"
    files = {"image": _png(Image.new("RGB", (64, 64))), "mask": _png(Image.new("RGBA", (64, 64)))}
    in_json = {
        name: {"image_url": f"data:image/png;base64,{base64.b64encode(file).decode()}"}
        for name, file in files.items()
    }
    body = {"prompt": "a", "images": [in_json["image"]], "mask": in_json["mask"]}
    assert httpx.post(url, json=body, timeout=300).status_code == 200
    for refused in (
        httpx.post(url, json=body | beside),
        httpx.post(url, data={"prompt": "a"} | beside, files=files),
    ):
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
    masks = [("image", files["image"]), ("mask", files["mask"]), ("mask", files["mask"])]
    refused = httpx.post(url, data={"prompt": "a"}, files=masks)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "mask")


def test_an_edit_of_files_keeps_what_is_opaque_in_the_mask(gateway: GatewayProcess) -> None:
    mask = Image.new("RGBA", (64, 64), (0, 0, 0, 255))
    mask.paste((0, 0, 0, 0), (0, 0, 32, 64))
    image = Image.new("RGB", (64, 64), "red")
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0)
    image_id, mask_id = (
        client.files.create(file=("a.png", _png(each)), purpose="vision").id
        for each in (image, mask)
    )
    url = f"{gateway.url}/v1/images/edits"
    body = {"prompt": "a", "images": [{"file_id": image_id}], "mask": {"file_id": mask_id}}
    answer = httpx.post(url, json=body, timeout=300).json()
    edited = _image(answer["data"][0]["b64_json"]).convert("RGB")
    assert edited.crop((32, 0, 64, 64)).getcolors() == [(32 * 64, (255, 0, 0))]
    narrow = _png(Image.new("RGBA", (32, 64)))
    files = {"image": _png(image), "mask": narrow}
    refused = httpx.post(url, data={"prompt": "a"}, files=files).json()["error"]
    assert (refused["param"], "proportions" in refused["message"]) == ("mask", True)
    refused = httpx.post(url, files={"prompt": (None, "a"), "image": (None, "a.png")})
    assert "curl -F image=@photo.png" in refused.json()["error"]["message"]


def test_a_field_that_a_form_has_twice_with_two_values_is_refused(gateway: GatewayProcess) -> None:
    files = {"image": _png(Image.new("RGB", (64, 64)))}
    refused = httpx.post(f"{gateway.url}/v1/images/edits", data={"prompt": ["a", "b"]}, files=files)
    assert refused.json()["error"]["message"] == "prompt='b': is given as 'a', too"


def test_a_parameter_that_is_null_is_not_given(gateway: GatewayProcess) -> None:
    body = {"prompt": "a", "size": "64x64", "width": None, "height": None, "id": None}
    url = f"{gateway.url}/v1/images/generations"
    assert httpx.post(url, json=body, timeout=300).json()["size"] == "64x64"


def test_a_path_is_no_image_and_the_answer_says_what_is(gateway: GatewayProcess) -> None:
    body = {"prompt": "a", "image": "/etc/passwd"}
    refused = httpx.post(f"{gateway.url}/v1/images/generations", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "image")
    message = refused.json()["error"]["message"]
    assert ("the id of a file" in message, "Python" in message) == (True, False)


@pytest.mark.parametrize("path", ["/v1/images/generations", "/sdapi/v1/txt2img"])
def test_a_file_that_does_not_exist_is_answered_as_the_document_says(
    gateway: GatewayProcess, path: str
) -> None:
    refused = httpx.post(gateway.url + path, json={"prompt": "a", "image": "file-none"})
    assert refused.status_code == 404
    document = httpx.get(f"{gateway.url}/openapi.json").json()
    assert "404" in document["paths"][path]["post"]["responses"]
