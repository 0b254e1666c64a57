"""A job shows previews only if its request asks for them, and only while it runs."""

import base64
import io
from pathlib import Path

import numpy as np
from PIL import Image

from imagefleet import Client
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.images.encode_preview import MAX_URL_LENGTH, preview_url
from tests.support.processes import Worker, until
from tests.support.settings import worker_settings


def test_the_status_of_a_running_job_shows_a_preview(tmp_path: Path) -> None:
    with LocalRedisServer(tmp_path / "redis") as server:
        settings = worker_settings(
            server.url,
            tmp_path,
            IMAGEFLEET_MODEL="fake:seconds=0.5",
            IMAGEFLEET_SHAPES="512x1024",
        )
        worker = Worker(tmp_path, settings)
        worker.await_log("ready after")
        client = Client(server.url)
        with_preview = client.submit("a", seed=1, num_inference_steps=12, preview=True)
        without_preview = client.submit("b", seed=1, num_inference_steps=12)
        url = until(lambda: with_preview.status().preview)
        assert without_preview.status().preview is None
        with_preview.result(timeout=900)
        assert with_preview.status().preview is None
        assert worker.terminate() == 0
    assert len(url) <= MAX_URL_LENGTH
    kind, data = url.split(",")
    assert kind == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (64, 32)


def test_a_preview_of_noise_is_small_enough_for_the_record() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)
    assert 1_000 < len(preview_url(noise[:64, :64])) <= MAX_URL_LENGTH
    assert len(preview_url(noise)) <= MAX_URL_LENGTH
