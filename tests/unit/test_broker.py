"""One Redis address, in two spellings; what a message says outside its body."""

import json
from typing import Any

import numpy as np
import pytest

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.celery_message import job_message
from imagefleet.shared.jobs.model import JobRequest
from imagefleet.shared.redis_client.connection import celery_url, transport_options
from imagefleet.shared.redis_client.sentinel import Address
from imagefleet.shared.settings import Settings
from imagefleet.worker.engine.interface import ImageSpec, InitImage


@pytest.mark.parametrize(
    ("ours", "celery_s"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:p@h/0?health_check_interval=2", "redis://:p@h/0?health_check_interval=2"),
        ("rediss://:p@h:6379/0", "rediss://:p@h:6379/0?ssl_cert_reqs=required"),
        ("rediss://h/0?ssl_cert_reqs=none", "rediss://h/0?ssl_cert_reqs=none"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock"),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock?virtual_host=3"),
        (
            "sentinel://:p%40ss@a:1,b/fleet?db=2",
            "sentinel://:p%40ss@a:1/2;sentinel://:p%40ss@b:26379/2",
        ),
    ],
)
def test_celery_reads_the_same_address_in_its_own_spelling(ours: str, celery_s: str) -> None:
    assert celery_url(ours) == celery_s


def test_the_sentinels_service_is_told_as_an_option() -> None:
    assert transport_options("sentinel://a,b/fleet")["master_name"] == "fleet"
    assert "master_name" not in transport_options("redis://a/0")


def test_the_sentinels_own_password_is_told_as_an_option() -> None:
    told = transport_options("sentinel://:pw@a/fleet?sentinel_password=sp")
    assert told["sentinel_kwargs"] == {"password": "sp"}


@pytest.mark.parametrize(
    "wrong",
    [
        "sentinel://",
        "sentinel://a",
        "sentinel:///fleet",
        "sentinel://a/fleet/0",
        "sentinel://a/fleet?db=x",
        "sentinel://a/fleet?bd=1",
        "sentinel://a:b/fleet",
    ],
)
def test_an_address_of_sentinels_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="redis_url"):
        Settings.load(redis_url=wrong)


def test_passwords_of_sentinels_do_not_show() -> None:
    address = Address.parse("sentinel://u:hunter2@a/fleet?sentinel_password=hunter2")
    assert (address.username, address.password, address.sentinel_password) == (
        "u",
        "hunter2",
        "hunter2",
    )
    assert "hunter2" not in repr(address)


def _headers(**parameters: object) -> dict[str, Any]:
    request = JobRequest.parse({"prompt": "a", **parameters})
    headers: dict[str, Any] = json.loads(job_message("j", request, "q"))["headers"]
    return headers


def test_a_message_says_its_pictures_and_steps_where_the_request_does() -> None:
    said = _headers(num_images_per_prompt=3, num_inference_steps=30)
    assert (said["images"], said["steps"]) == (3, 30)
    assert not {"images", "steps"} & _headers().keys()


@pytest.mark.parametrize("strength", [0.01, 0.29, 0.5, 0.8, 1.0])
def test_a_message_says_the_steps_that_the_engine_takes_from_a_picture(strength: float) -> None:
    original = InitImage(pixels=np.zeros((1, 8, 8, 3), np.uint8), strength=strength, digest="")
    for steps in range(1, 51):
        spec = ImageSpec(
            prompt="a", num_inference_steps=steps, guidance_scale=3.0, original=original
        )
        said = _headers(image="cat.png", strength=strength, num_inference_steps=steps)
        assert said.get("steps", 0) == spec.steps
