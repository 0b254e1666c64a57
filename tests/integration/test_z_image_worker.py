"""A worker serves a tiny Z-Image from Redis: jobs of every kind that the family takes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from imagefleet import Client, InvalidRequest, Job
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import ObjectStore, open_store
from tests.support.family_jobs import pixels
from tests.support.processes import Worker
from tests.support.settings import checkpoint_settings
from tests.unit.engine.flow_parity import write_drawn_weights
from tools.parity.flow.z_image_case import HEIGHT, WIDTH, Variant, write_configs
from tools.parity.known.write import init_image

NAME: Final = "tiny-z-image"
JOBS: Final[list[dict[str, Any]]] = [
    {"guidance_scale": 0.0, "num_inference_steps": 8},
    {"guidance_scale": 4.0, "num_inference_steps": 3, "negative_prompt": "blue"},
    {"guidance_scale": 2.5, "num_inference_steps": 5, "scheduler": "heun"},
    {"num_images_per_prompt": 3, "num_inference_steps": 2},
    {
        "guidance_scale": 5.0,
        "num_inference_steps": 5,
        "cfg_normalization": True,
        "cfg_truncation": 0.3,
    },
]


@dataclass(frozen=True, kw_only=True)
class Fleet:
    client: Client
    store: ObjectStore
    worker: Worker

    def pixels(self, job: Job, index: int = 0) -> NDArray[np.int_]:
        return pixels(self.store, job, index)

    def document(self, job: Job) -> dict[str, Any]:
        assert job.result(timeout=900).images
        document: dict[str, Any] = json.loads(self.store.get(f"jobs/{job.id}/0.json"))
        return document


def _environment(folder: Path, server: LocalRedisServer, **settings: str) -> dict[str, str]:
    settings["IMAGEFLEET_MAX_NUM_INFERENCE_STEPS"] = "12"
    return checkpoint_settings(server.url, folder, NAME, f"{HEIGHT}x{WIDTH}", **settings)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("z_image")
    write_configs(folder / NAME, Variant(scheduler={"use_dynamic_shifting": True}))
    write_drawn_weights(folder / NAME)
    defaults = {"num_inference_steps": 4, "guidance_scale": 0.0}
    (folder / NAME / "imagefleet.json").write_text(json.dumps(defaults))
    return folder


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[LocalRedisServer]:
    with LocalRedisServer(checkpoint / "redis") as server:
        yield server


@pytest.fixture(scope="module")
def fleet(checkpoint: Path, server: LocalRedisServer) -> Iterator[Fleet]:
    """Start one worker with continuous batching."""
    environment = _environment(checkpoint, server, IMAGEFLEET_BATCHING="continuous")
    worker = Worker(checkpoint, environment)
    worker.await_log("ready after", timeout_s=900)
    store = open_store(environment["IMAGEFLEET_STORAGE_URL"])
    with Client(server.url) as client:
        yield Fleet(client=client, store=store, worker=worker)
    assert worker.terminate() == 0
    assert "Traceback" not in worker.output()


def _submit(client: Client) -> list[Job]:
    return [
        client.submit(f"a red circle {number}", seed=number, **job)
        for number, job in enumerate(JOBS)
    ]


def test_jobs_are_made_with_the_defaults_of_the_checkpoint_and_their_own(fleet: Fleet) -> None:
    plain = fleet.client.submit("a red circle", seed=1, preview=True)
    document = fleet.document(plain)
    assert (document["num_inference_steps"], document["guidance_scale"]) == (4, 0.0)
    assert document["scheduler"] == "euler"
    again = fleet.client.submit("a red circle", seed=1)
    other = fleet.client.submit("a blue star", seed=1)
    assert np.array_equal(fleet.pixels(plain), fleet.pixels(again))
    assert not np.array_equal(fleet.pixels(plain), fleet.pixels(other))


def test_a_job_may_start_from_an_image(fleet: Fleet) -> None:
    start = Image.fromarray(init_image(WIDTH)[:HEIGHT])
    job = fleet.client.submit("a red circle", seed=1, image=start, num_inference_steps=9)
    plain = fleet.client.submit("a red circle", seed=1, num_inference_steps=9)
    assert not np.array_equal(fleet.pixels(job), fleet.pixels(plain))
    assert fleet.document(job)["strength"] == 0.6
    assert (job.status().step, plain.status().step) == (6, 9)


def test_images_of_a_dataset_are_generated_again_with_equal_pixels(
    fleet: Fleet, tmp_path: Path
) -> None:
    prompts = [f"a red circle and {number} stars" for number in range(5)]
    run = fleet.client.bulk(prompts, tmp_path / "data", seed=1, guidance_scale=3.0)
    assert run.wait(900).images == 5
    report = run.verify(sample=3)
    assert (report.clean, report.regenerated) == (True, 3)
    assert report.max_difference is not None
    assert report.max_difference <= 1


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("clip_skip", 1),
        ("guidance_rescale", 0.5),
        ("denoising_end", 0.5),
        ("prompt_weighting", True),
        ("loras", "style"),
    ],
)
def test_parameters_that_the_family_lacks_are_refused(
    fleet: Fleet, parameter: str, value: Any
) -> None:
    with pytest.raises(InvalidRequest, match=f"^{parameter}=.*{NAME}"):
        fleet.client.submit("a", **{parameter: value})


def test_images_of_whole_batches_are_those_of_streams(fleet: Fleet, checkpoint: Path) -> None:
    """Beside others an image runs another program, so a value may be one level off."""
    images = [fleet.pixels(job) for job in _submit(fleet.client)]
    with LocalRedisServer(checkpoint / "second") as server, Client(server.url) as client:
        worker = Worker(checkpoint, _environment(checkpoint, server))
        for job, image in zip(_submit(client), images, strict=True):
            other = Fleet(client=client, store=fleet.store, worker=worker).pixels(job)
            assert np.abs(other - image).max() <= 1
        assert worker.terminate() == 0
