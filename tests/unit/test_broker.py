"""Redis addresses in our and Celery's spelling, and the headers of a job's message."""

import json
from typing import Any

import numpy as np
import pytest

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.celery_message import images_of, job_message
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.connection import celery_url, connect, transport_options
from imagefleet.shared.redis_client.sentinel import Address
from imagefleet.shared.settings.settings import Settings
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageSpec


@pytest.mark.parametrize(
    ("ours", "celery"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:p@h/0?health_check_interval=2", "redis://:p@h/0"),
        ("redis://h/0?password=p%40ss", "redis://:p%40ss@h/0"),
        ("redis://h:1?db=2&username=u&password=p", "redis://u:p@h:1/2"),
        (
            "unix:///run/redis.sock?password=p&db=3",
            "redis+socket://:p@/run/redis.sock?virtual_host=3",
        ),
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
def test_celery_gets_the_same_address_in_its_own_spelling(ours: str, celery: str) -> None:
    assert celery_url(ours) == celery


def test_celery_gets_the_sentinel_service_as_an_option() -> None:
    assert transport_options("sentinel://a,b/fleet")["master_name"] == "fleet"
    assert "master_name" not in transport_options("redis://a/0")


def test_celery_gets_the_sentinels_password_as_an_option() -> None:
    options = transport_options("sentinel://:pw@a/fleet?sentinel_password=sp")
    assert options["sentinel_kwargs"] == {"password": "sp"}


@pytest.mark.parametrize(
    "other",
    [
        "amqp://user:hunter2@h:5672//",
        "pyamqps://user:hunter2@h//",
        "sqs://key:hunter2@",
        "kafka://h:9092",
        "pulsar://h:6650",
        "memory://",
    ],
)
def test_another_broker_is_refused_in_one_sentence_that_says_why(other: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings.load(redis_url=other)
    assert "must begin with redis://, rediss://, unix://, sentinel:// or redis" in str(
        refused.value
    )
    assert "other brokers cannot hold a fleet, because a claim is a script" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("redis://h/0?pasword=hunter2", "has the unknown option 'pasword'; a redis:// address may"),
        ("redis://h/0?ssl_ca_certs=/a", "has the unknown option 'ssl_ca_certs'"),
        ("unix:///run/a.sock?decode_responses=no", "has the unknown option 'decode_responses'"),
        ("unix:///run/a.sock?db=one", "the number of a database as its option db"),
        ("unix://?db=1", "must name a socket"),
        ("redis://h/0?db=1&db=2", "has the option db twice"),
        ("redis://h/0?socket_timeout=nan", "a number of seconds"),
        ("redis://h/0?health_check_interval=2.5", "must have whole seconds"),
        ("rediss://h/0?ssl_cert_reqs=perhaps", "one of required, optional, none"),
        ("rediss://h/0?ssl_ca_certs=", "must have a value for its option ssl_ca_certs"),
        ("sentinel://a/fleet?bd=1", "has the unknown option 'bd'; a sentinel:// address may have"),
    ],
)
def test_a_wrong_option_of_an_address_is_refused_and_named(wrong: str, sentence: str) -> None:
    for use in (lambda: Settings.load(redis_url=wrong), lambda: connect(wrong)):
        with pytest.raises(ConfigurationError) as refused:
            use()
        assert sentence in str(refused.value)
        assert "hunter2" not in str(refused.value)


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
def test_an_invalid_sentinel_address_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="redis_url"):
        Settings.load(redis_url=wrong)


def test_a_sentinel_address_hides_its_passwords_in_its_repr() -> None:
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


def test_headers_have_images_and_steps_if_the_request_gives_them() -> None:
    headers = _headers(num_images_per_prompt=3, num_inference_steps=30)
    assert (headers["images"], headers["steps"]) == (3, 30)
    assert not {"images", "steps"} & _headers().keys()


@pytest.mark.parametrize(
    ("header", "images"),
    [(7, 7), (None, 1), (0, 1), (-3, 1), ("7", 1), (7.5, 1), (10**30, 1), ([7], 1)],
)
def test_a_message_with_an_impossible_number_of_images_counts_as_one(
    header: object, images: int
) -> None:
    assert images_of(json.dumps({"headers": {"images": header}})) == images
    assert images_of("no message") == images_of("[]") == 1


@pytest.mark.parametrize("strength", [0.01, 0.29, 0.5, 0.8, 1.0])
def test_the_steps_header_equals_the_steps_that_the_engine_denoises(strength: float) -> None:
    init_image = InitImage(pixels=np.zeros((1, 8, 8, 3), np.uint8), strength=strength, digest="")
    for steps in range(1, 51):
        spec = ImageSpec(
            prompt="a", num_inference_steps=steps, guidance_scale=3.0, init_image=init_image
        )
        headers = _headers(image="cat.png", strength=strength, num_inference_steps=steps)
        assert headers.get("steps", 0) == spec.steps
