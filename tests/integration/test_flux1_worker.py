"""A worker serves a tiny FLUX.1 from Redis: jobs with mixtures of LoRA, a dataset, and refusals."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from imagefleet import Client, InvalidRequest
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import open_store
from tests.support.family_jobs import make_and_verify, pixels
from tests.support.processes import Worker
from tests.support.settings import checkpoint_settings
from tests.unit.engine.flow_family import FLUX1
from tools.parity.flow.flux1_case import HEIGHT, WIDTH

NAME: Final = "tiny-flux1"
LORAS: Final = ("clip", "x_flux")
SAME: Final[list[dict[str, Any]]] = [{}, {"negative_prompt": "blue"}]
"""Further parameters of jobs with equal images: a negative prompt has no effect."""
OTHERS: Final[list[dict[str, Any]]] = [
    {"guidance_scale": 9.0},
    {"loras": [("x_flux", 0.8)]},
    {"loras": [("clip", 4.0)]},
    {"loras": [("clip", 4.0), ("x_flux", -0.5)]},
]


def test_a_worker_makes_jobs_with_mixtures_of_lora_and_a_dataset(tmp_path: Path) -> None:
    FLUX1.write_with_loras(tmp_path / NAME)
    loras = ",".join(f"{name}={tmp_path / name}.safetensors" for name in LORAS)
    with LocalRedisServer(tmp_path / "redis") as server, Client(server.url) as client:
        environment = checkpoint_settings(
            *(server.url, tmp_path, NAME, f"{HEIGHT}x{WIDTH}"),
            IMAGEFLEET_BATCHING="continuous",
            IMAGEFLEET_JOB_LORA=loras,
        )
        worker = Worker(tmp_path, environment)
        worker.await_log("ready after", timeout_s=900)
        store = open_store(environment["IMAGEFLEET_STORAGE_URL"])
        jobs = [
            client.submit("a red circle", seed=1, num_inference_steps=4, **given)
            for given in (*SAME, *OTHERS)
        ]
        first, negative, *others = (pixels(store, job) for job in jobs)
        assert np.abs(first - negative).max() <= 1  # beside others the sums may be other ones
        for number, image in enumerate(others):
            for other in (first, *others[:number]):
                assert np.abs(image - other).max() > 1
        with pytest.raises(InvalidRequest, match=r"^clip_skip=1"):
            client.submit("a", clip_skip=1)
        make_and_verify(client, ["a red circle", "a blue star"], tmp_path / "data")
        assert worker.terminate() == 0
        assert "Traceback" not in worker.output()
