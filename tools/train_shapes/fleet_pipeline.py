"""The whole system as a pipeline: Python client, Redis, Celery worker and storage.

Input: prompts. Output: the stored images. It starts its own Redis and worker with the default
settings.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
from PIL import Image

from imagefleet import Client
from imagefleet.producer.demo.processes import DemoProcess
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tools.train_shapes.scenes import ImageArray


class FleetPipeline:
    """The pipeline submits prompts as jobs and reads the stored images.

    `with FleetPipeline("shapes") as fleet: fleet.draw([...], first_seed=0)`
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._running = ExitStack()

    def __enter__(self) -> Self:
        folder = Path(self._running.enter_context(tempfile.TemporaryDirectory()))
        self._store = folder / "store"
        server = self._running.enter_context(LocalRedisServer(folder / "redis"))
        environment = {
            "IMAGEFLEET_REDIS_URL": server.url,
            "IMAGEFLEET_MODEL": self._model,
            "IMAGEFLEET_STORAGE_URL": f"file://{self._store}",
        }
        worker = DemoProcess("imagefleet.worker", environment, folder / "worker.log")
        self._running.callback(worker.stop)
        worker.start()
        self._client = self._running.enter_context(Client(server.url))
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def draw(
        self,
        prompts: list[str],
        *,
        first_seed: int,
        guidance: float | None = None,
        steps: int | None = None,
        **parameters: Any,
    ) -> list[ImageArray]:
        """Generate one image per prompt, in order."""
        entries = [
            {"prompt": prompt, "seed": first_seed + place} for place, prompt in enumerate(prompts)
        ]
        jobs = self._client.submit_many(
            entries, guidance_scale=guidance, num_inference_steps=steps, **parameters
        )
        keys = [job.result(timeout=600).images[0].key for job in jobs]
        return [np.asarray(Image.open(self._store / key).convert("RGB")) for key in keys]
