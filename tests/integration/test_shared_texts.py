"""Workers of a tiny FLUX.2 klein share encoded texts through a real S3 server."""

import io
import re
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from imagefleet import Client
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import open_store
from tests.support.http_client import http_get
from tests.support.ports import reserved_port
from tests.support.processes import until, worker_processes
from tests.support.s3 import signed_s3
from tests.support.settings import checkpoint_settings
from tests.unit.engine.flow_parity import write_drawn_weights
from tools.parity.flow.flux2_klein_case import HEIGHT, WIDTH, Variant, write_configs

NAME: Final = "tiny-klein"
PROMPTS: Final = ("a red circle", "a blue star", "a ring")


def _pixels(client: Client, folder: str) -> list[NDArray[np.uint8]]:
    """Return the images of all prompts, which are made one after another."""
    store, keys = open_store(folder), []
    for prompt in PROMPTS:
        keys.append(client.submit(prompt, seed=1).result(timeout=900).images[0].key)
    return [np.asarray(Image.open(io.BytesIO(store.get(key))).convert("RGB")) for key in keys]


def _sample(page: str, metric: str, label: str) -> float:
    """Return the value of a metric that has this label."""
    [value] = re.findall(rf'^{metric}{{.*="{label}".*}} (\S+)$', page, re.MULTILINE)
    return float(value)


def test_a_second_worker_takes_texts_from_the_store_and_encodes_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_configs(tmp_path / NAME, Variant(index={"is_distilled": True}))
    write_drawn_weights(tmp_path / NAME)
    with signed_s3() as s3, LocalRedisServer(tmp_path / "redis") as server, reserved_port() as port:
        for name, value in s3.credentials.environment().items():
            monkeypatch.setenv(name, value)
        settings = checkpoint_settings(
            server.url,
            tmp_path,
            NAME,
            f"{HEIGHT}x{WIDTH}",
            IMAGEFLEET_TEXTS_URL=s3.url("texts"),
            IMAGEFLEET_METRICS_PORT=str(port),
            IMAGEFLEET_METRICS_HOST="127.0.0.1",
        )
        texts, images = open_store(s3.url("texts")), settings["IMAGEFLEET_STORAGE_URL"]
        with worker_processes(tmp_path, settings) as start, Client(server.url) as client:
            worker = start()
            first = _pixels(client, images)
            until(lambda: len(list(texts.list())) == len(PROMPTS))
            assert worker.terminate() == 0
            damaged = next(iter(texts.list()))
            whole = texts.get(damaged)
            texts.put(damaged, whole[:-1], "application/octet-stream")
            worker = start()
            second = _pixels(client, images)
            page = http_get(port, "/metrics")[1]
            assert _sample(page, "imagefleet_text_cache", "stored") == len(PROMPTS) - 1
            assert _sample(page, "imagefleet_text_cache", "misses") == 1
            assert _sample(page, "imagefleet_text_store_faults_total", "damaged") == 1
            until(lambda: texts.get(damaged) == whole)
            assert worker.terminate() == 0
    for image, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(image, other)
