"""Jobs with ControlNets run on workers that hold their nets; a bad control image ends its job."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from PIL import Image

from imagefleet import Client, InvalidRequest, JobFailed, State
from tests.support.image_server import ImageServer
from tests.support.jobs import finish
from tests.support.processes import StartWorker, until

_HELD = {
    "IMAGEFLEET_CONTROLNET": "canny=/nets/canny,depth=/nets/depth",
    "IMAGEFLEET_CALLBACK_ALLOW": "127.0.0.1",
}


def _file(kind: str = "PNG", size: tuple[int, int] = (48, 40), **given: Any) -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **given)
    return file.getvalue()


def _offers_nets(producer: Client) -> Callable[[], bool]:
    return lambda: any(offer.controlnets for offer in (producer.offers() or {}).values())


def test_a_worker_without_the_net_leaves_job_and_shard_to_one_that_holds_it(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    def moved() -> list[str]:
        return list(client.scan_iter(f"{namespace}.*&controlnet=canny*"))

    with ImageServer({"/edges": _file()}) as server:
        given: Any = {"controlnet": "canny", "control_image": f"{server.url}/edges"}
        job = producer.submit("a", seed=1, **given)  # nobody has announced anything
        run = producer.bulk([{"prompt": "a", "seed": 1, **given}], tmp_path / "data")
        start()
        until(lambda: len(moved()) == 2)
        with pytest.raises(InvalidRequest, match="those of the model fake hold no ControlNet"):
            producer.submit("a", **given)
        start(**_HELD)
        assert finish(producer, [job]) == {State.SUCCEEDED}
        assert run.wait(300).images == 1
        assert not moved()
        until(_offers_nets(producer))
        assert finish(producer, [producer.submit("b", **given)]) == {State.SUCCEEDED}


def test_a_bad_control_image_ends_its_own_job_and_no_worker(
    start: StartWorker, producer: Client
) -> None:
    animated = _file("WEBP", save_all=True, append_images=[Image.new("RGB", (48, 40))])
    files = {
        "/text": b"not an image",
        "/empty": b"",
        "/cut": _file()[:200],
        "/bmp": _file("BMP"),
        "/long": _file(size=(65_536, 1)),
        "/good": _file(),
        "/animated": animated,
    }
    worker = start(**_HELD)
    until(_offers_nets(producer))
    with ImageServer(files) as server:
        jobs = {
            name: producer.submit(
                "a", seed=1, controlnet="canny", control_image=f"{server.url}{name}"
            )
            for name in [*files, "/missing"]
        }
        jobs["/init"] = producer.submit(
            "a",
            seed=1,
            controlnet="canny",
            control_image=f"{server.url}/good",
            controlnet_conditioning_scale=0.5,
            image=f"{server.url}/good",
            strength=0.5,
        )
        inside = producer.submit(
            "a", controlnet="canny", control_image="http://169.254.169.254/secret"
        )
        for _ in producer.as_completed([*jobs.values(), inside], timeout=300):
            pass
    for name in ("/text", "/empty", "/cut", "/bmp", "/long", "/missing"):
        with pytest.raises(JobFailed, match="control_image") as failed:
            jobs[name].result()
        assert failed.value.failure_code == "invalid_input", name
    with pytest.raises(JobFailed, match=r"control_image.*169\.254"):
        inside.result()
    # Of an animation the first picture counts.
    for name in ("/good", "/init", "/animated"):
        assert jobs[name].result().images
    assert worker.terminate() == 0
