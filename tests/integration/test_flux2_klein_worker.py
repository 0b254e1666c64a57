"""A worker serves a tiny, distilled FLUX.2 klein from Redis: jobs, a dataset, and refusals."""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from PIL import Image

from imagefleet import Client, JobFailed
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import open_store
from tests.support.family_jobs import make_and_verify, pixels
from tests.support.processes import Worker
from tests.support.settings import checkpoint_settings
from tests.unit.engine.flow_parity import write_drawn_weights
from tools.parity.flow.flux2_klein_case import HEIGHT, WIDTH, Variant, write_configs
from tools.parity.known.write import init_image

NAME: Final = "tiny-klein"
SIDE: Final = 64
"""diffusers takes no reference image with a smaller side."""
JOBS: Final[list[tuple[str, int, dict[str, Any]]]] = [
    ("a red circle", 1, {}),
    ("a red circle", 1, {"guidance_scale": 9.0, "negative_prompt": "blue"}),
    ("a blue star", 1, {}),
    ("a red circle", 2, {"num_inference_steps": 7, "scheduler": "heun"}),
]
"""Each has a prompt, a seed and further parameters."""


def test_a_worker_makes_jobs_and_a_dataset_with_the_defaults_of_a_distilled_model(
    tmp_path: Path,
) -> None:
    write_configs(tmp_path / NAME, Variant(index={"is_distilled": True}))
    write_drawn_weights(tmp_path / NAME)
    with LocalRedisServer(tmp_path / "redis") as server, Client(server.url) as client:
        shapes = f"{HEIGHT}x{WIDTH},{SIDE}x{SIDE}"
        environment = checkpoint_settings(
            server.url, tmp_path, NAME, shapes, IMAGEFLEET_BATCHING="continuous"
        )
        worker = Worker(tmp_path, environment)
        worker.await_log("ready after", timeout_s=900)
        store = open_store(environment["IMAGEFLEET_STORAGE_URL"])
        jobs = [
            client.submit(prompt, seed=seed, preview=True, **given) for prompt, seed, given in JOBS
        ]
        first, guided, *others = (pixels(store, job) for job in jobs)
        assert np.abs(first - guided).max() <= 1  # beside others an image runs another program
        for other in others:
            assert np.abs(first - other).max() > 1
        document = json.loads(store.get(f"jobs/{jobs[0].id}/0.json"))
        assert (document["num_inference_steps"], document["guidance_scale"]) == (4, 1.0)
        reference = Image.fromarray(init_image(2 * SIDE))
        large: dict[str, Any] = {"seed": 1, "height": SIDE, "width": SIDE}
        edited = client.submit("a red circle", image=reference, **large)
        plain = client.submit("a red circle", **large)
        assert np.abs(pixels(store, edited) - pixels(store, plain)).max() > 1
        document = json.loads(store.get(f"jobs/{edited.id}/0.json"))
        assert document["image_digest"].startswith("sha256:")
        too_small = client.submit("a", image=Image.fromarray(init_image(WIDTH)[:HEIGHT]))
        with pytest.raises(
            JobFailed, match=rf"image: .* takes none for a size of {HEIGHT}x{WIDTH}"
        ):
            too_small.result(timeout=900)
        make_and_verify(client, ["a red circle", "a blue star", "a ring"], tmp_path / "data")
        assert worker.terminate() == 0
        assert "Traceback" not in worker.output()
