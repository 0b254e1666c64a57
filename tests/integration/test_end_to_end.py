"""Jobs run end to end on real parts: client, Redis, worker on 8 devices, model, S3, callbacks."""

import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from imagefleet import Client, Job
from imagefleet.shared.jobs.model import CallbackEvent
from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import ObjectStore, open_store
from imagefleet.shared.webhooks.signature import new_secret
from tests.support.judge import judge, score
from tests.support.processes import Worker
from tests.support.receiver import Receiver
from tests.support.s3 import signed_s3
from tools.train_shapes.scenes import Combination, Scene

SCENES = {
    "a small red circle on the left on a blue background": "red circle blue small left",
    "a large yellow star in the center on a purple background": "yellow star purple large center",
    "a large white heart at the top on a black background": "white heart black large top",
    "a medium blue square at the bottom on a yellow background": "blue square yellow medium bottom",
    "a large black ring in the center on a pink background": "black ring pink large center",
    "a large blue heart on the right on a white background": "blue heart white large right",
    "a medium yellow square on the left on a black background": "yellow square black medium left",
    "a large green circle at the bottom on a pink background": "green circle pink large bottom",
}


@dataclass(frozen=True, kw_only=True)
class Fleet:
    client: Client
    store: ObjectStore
    receiver: Receiver

    def image(self, job: Job, index: int = 0) -> NDArray[np.uint8]:
        data = self.store.get(job.result(timeout=900).images[index].key)
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Start one worker with the bundled model on 8 virtual devices; all other parts are real."""
    folder = tmp_path_factory.mktemp("fleet")
    secret = new_secret()
    with (
        LocalRedisServer(folder / "redis") as server,
        signed_s3() as s3,
        Receiver([secret]) as receiver,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in s3.credentials.environment().items():
            patch.setenv(name, value)
        environment = {
            "IMAGEFLEET_REDIS_URL": server.url,
            "IMAGEFLEET_STORAGE_URL": s3.url("run"),
            "IMAGEFLEET_CACHE_DIR": str(folder / "cache"),
            "IMAGEFLEET_WEBHOOK_SECRETS": secret,
            "IMAGEFLEET_CALLBACK_ALLOW": "127.0.0.1",
            "XLA_FLAGS": "",
        }
        worker = Worker(folder, environment)
        worker.await_log("ready after")
        assert "8 images per batch" in worker.output()
        yield Fleet(client=Client(server.url), store=open_store(s3.url("run")), receiver=receiver)
        assert worker.terminate() == 0
        assert "Traceback" not in worker.output()


def _scene(words: str) -> Scene:
    colour, shape, background, size, position = words.split()
    combination = Combination(colour=colour, shape=shape, background=background)
    return Scene(combination=combination, size=size, position=position)


def test_images_show_what_their_prompts_describe(fleet: Fleet) -> None:
    jobs = fleet.client.submit_many(list(SCENES), seed=1)
    scores = [
        score(judge(fleet.image(job)), _scene(words))
        for job, words in zip(jobs, SCENES.values(), strict=True)
    ]
    assert sum(each.background for each in scores) >= 7
    assert sum(each.colour for each in scores) >= 7
    assert sum(each.position for each in scores) >= 7
    assert sum(each.shape for each in scores) >= 6


def test_stored_images_carry_their_parameters(fleet: Fleet) -> None:
    parameters: dict[str, Any] = {"seed": 5, "num_inference_steps": 7, "guidance_scale": 2.5}
    job = fleet.client.submit(
        "a red star, ünïcode", negative_prompt="blue", num_images_per_prompt=2, **parameters
    )
    result = job.result(timeout=900)
    assert [image.key for image in result.images] == [f"jobs/{job.id}/{n}.png" for n in (0, 1)]
    for image in result.images:
        data = fleet.store.get(image.key)
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (image.sha256, image.size)
        document = json.loads(fleet.store.get(f"jobs/{job.id}/{image.index}.json"))
        assert {name: document[name] for name in parameters} == parameters
        assert document["model_digest"] == result.model_digest
        assert document["image"]["sha256"] == image.sha256
        image_file = Image.open(io.BytesIO(data))
        assert isinstance(image_file, PngImageFile)
        text = image_file.text
        assert text["parameters"].startswith("a red star, ünïcode\nNegative prompt: blue\nSteps: 7")
    first, second = (fleet.image(job, index) for index in (0, 1))
    assert np.abs(first.astype(int) - second).max() > 16


@pytest.mark.parametrize(("file_format", "opens_as"), [("webp", "WEBP"), ("jpeg", "JPEG")])
def test_other_formats_are_stored_in_that_format(
    fleet: Fleet, file_format: str, opens_as: str
) -> None:
    result = fleet.client.submit("a red star", format=file_format).result(timeout=900)
    image = Image.open(io.BytesIO(fleet.store.get(result.images[0].key)))
    assert (image.format, image.size) == (opens_as, (64, 64))


def test_an_image_does_not_depend_on_its_batch_or_slot(
    fleet: Fleet,
) -> None:
    prompt = "a large yellow star in the center on a purple background"
    alone = fleet.image(fleet.client.submit(prompt, seed=11))
    filler = [{"prompt": f"filler {n}", "num_inference_steps": 3 + n} for n in range(7)]
    same = {"prompt": prompt, "seed": 11}
    first = fleet.client.submit_many([same, *filler])[0]
    last = fleet.client.submit_many([*filler, same])[-1]
    assert np.array_equal(alone, fleet.image(first))
    assert np.array_equal(alone, fleet.image(last))


def test_negative_prompt_guidance_and_steps_change_the_image(fleet: Fleet) -> None:
    base = {"prompt": "a red circle", "seed": 3}
    plain, negative, guided, longer = (
        fleet.image(job)
        for job in fleet.client.submit_many(
            [
                base,
                {**base, "negative_prompt": "a blue background"},
                {**base, "guidance_scale": 6},
                {**base, "num_inference_steps": 5},
            ]
        )
    )
    for other in (negative, guided, longer):
        assert not np.array_equal(plain, other)


def test_callbacks_arrive_signed_and_only_for_the_requested_events(fleet: Fleet) -> None:
    url = f"{fleet.receiver.url}/each"
    everything = [event.value for event in CallbackEvent]
    done = fleet.client.submit("a star", callback_url=url, callback_events=everything)
    quiet = fleet.client.submit("a ring", callback_url=url, callback_events=["failed"])
    result = done.result(timeout=900)
    quiet.result(timeout=900)
    last = fleet.client.submit("a heart", callback_url=url).result(timeout=900)
    assert isinstance(last, JobResult)
    bodies = _wait_for_callbacks(fleet, "each", ["job.started", "job.succeeded", "job.succeeded"])
    assert all(delivery.verified for delivery in fleet.receiver.deliveries)
    assert {body["data"]["id"] for body in bodies} >= {done.id}
    assert quiet.id not in {body["data"]["id"] for body in bodies}
    [finished] = [
        body["data"]
        for body in bodies
        if body["type"] == "job.succeeded" and body["data"]["id"] == done.id
    ]
    assert finished["result"] == result.model_dump(mode="json")


def _wait_for_callbacks(fleet: Fleet, path: str, least: list[str]) -> list[dict[str, Any]]:
    """Return the callbacks to `path` once at least these types have arrived."""
    for count in range(1, 100):
        arrived = fleet.receiver.wait_for(count)
        bodies = [json.loads(each.body) for each in arrived if each.path.endswith(path)]
        kinds = [body["type"] for body in bodies]
        if all(kinds.count(kind) >= least.count(kind) for kind in least):
            return bodies
    raise AssertionError(f"only {kinds}")


def test_unknown_words_give_an_image_and_truncated_prompts_are_recorded(fleet: Fleet) -> None:
    long, short = fleet.client.submit_many(["zyxwv Übergröße 🔴 " * 60, "xyzzy"])
    for job, truncated in ((long, True), (short, False)):
        assert fleet.image(job).shape == (64, 64, 3)
        document = json.loads(fleet.store.get(f"jobs/{job.id}/0.json"))
        assert document["prompt_truncated"] is truncated
