"""A worker serves a tiny Stable Diffusion 3 from Redis, with T5 and without: jobs of every kind
that the family takes, a dataset, and a refusal."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from PIL import Image

from imagefleet import Client, InvalidRequest
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import open_store
from tests.support.family_jobs import make_and_verify, pixels
from tests.support.processes import Worker
from tests.support.settings import checkpoint_settings
from tests.unit.engine.flow_family import STABLE_DIFFUSION_3
from tools.parity.flow.stable_diffusion_3_case import HEIGHT, WIDTH
from tools.parity.known.write import init_image

NAME: Final = "tiny-stable-diffusion-3"
JOBS: Final[list[dict[str, Any]]] = [
    {},
    {"negative_prompt": "blue"},
    {"guidance_scale": 1.0},
    {"clip_skip": 1},
    {"loras": [("texts", 1.5)]},
    {"loras": [("texts", 1.5), ("attention", -1.0)]},
    {"scheduler": "heun"},
]
"""Further parameters of jobs with other images."""


@pytest.mark.parametrize("has_t5", ["true", "false"])
def test_a_worker_makes_jobs_of_every_kind_and_a_dataset(tmp_path: Path, has_t5: str) -> None:
    STABLE_DIFFUSION_3.write_with_loras(tmp_path / NAME)
    loras = ",".join(f"{name}={tmp_path / name}.safetensors" for name in ("texts", "attention"))
    image = Image.fromarray(init_image(WIDTH)[:HEIGHT])
    with LocalRedisServer(tmp_path / "redis") as server, Client(server.url) as client:
        environment = checkpoint_settings(
            *(server.url, tmp_path, NAME, f"{HEIGHT}x{WIDTH}"),
            IMAGEFLEET_BATCHING="continuous",
            IMAGEFLEET_JOB_LORA=loras,
            IMAGEFLEET_TEXT_ENCODER_3=has_t5,
        )
        worker = Worker(tmp_path, environment)
        worker.await_log("ready after", timeout_s=900)
        store = open_store(environment["IMAGEFLEET_STORAGE_URL"])
        jobs = [
            client.submit("a red circle", seed=1, num_inference_steps=4, **given)
            for given in (*JOBS, {"image": image})
        ]
        images = [pixels(store, job) for job in jobs]
        again = client.submit("a red circle", seed=1, num_inference_steps=4)
        assert np.abs(pixels(store, again) - images[0]).max() <= 1
        for number, one in enumerate(images):
            for other in images[:number]:
                assert np.abs(one - other).max() > 1
        with pytest.raises(InvalidRequest, match=r"^guidance_rescale=0.5"):
            client.submit("a", guidance_rescale=0.5)
        make_and_verify(client, ["a red circle", "a blue star"], tmp_path / "data")
        assert worker.terminate() == 0
        assert "Traceback" not in worker.output()
