"""Who asks sees a picture grow; nobody else pays for it, and nothing of it stays."""

import base64
import io
from pathlib import Path

import numpy as np
from PIL import Image

from imagefleet import Client
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.images.preview_image import LONGEST_URL, preview_url
from tests.support.processes import Worker, until


def test_the_status_of_a_running_job_shows_what_is_painted(tmp_path: Path) -> None:
    with LocalRedisServer(tmp_path / "redis") as server:
        worker = Worker(
            tmp_path,
            {
                "IMAGEFLEET_REDIS_URL": server.url,
                "IMAGEFLEET_STORAGE_URL": (tmp_path / "out").as_uri(),
                "IMAGEFLEET_MODEL": "fake:seconds=0.15",
                "IMAGEFLEET_SHAPES": "512x1024",
            },
        )
        worker.await_log("ready after")
        client = Client(server.url)
        shown = client.submit("a", seed=1, num_inference_steps=100, preview=True)
        silent = client.submit("b", seed=1, num_inference_steps=100)
        until(lambda: shown.status().preview is not None)
        url = shown.status().preview or ""
        assert silent.status().preview is None
        shown.result(timeout=60)
        assert shown.status().preview is None
        assert worker.terminate() == 0
    assert len(url) <= LONGEST_URL
    kind, data = url.split(",")
    assert kind == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (64, 32)


def test_even_noise_is_small_enough() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)
    assert 1_000 < len(preview_url(noise[:64, :64])) <= LONGEST_URL
    assert len(preview_url(noise)) <= LONGEST_URL
