"""Two jobs of a real worker share the steps of one image."""

from typing import Any, Final

import pytest
from safetensors.numpy import load

from imagefleet import Client, JobFailed
from tests.support.processes import ROOT, StartWorker

MODEL: Final = str(ROOT / "tests" / "fixtures" / "parity" / "xl")
TIMEOUT_S: Final = 120
JOB: Final[dict[str, Any]] = {
    "seed": 7,
    "num_inference_steps": 4,
    "scheduler": "ddim",
    "guidance_scale": 3.0,
}


def test_two_jobs_in_a_row_make_the_image_of_one(producer: Client, start: StartWorker) -> None:
    """SDXL's base refines its own latents here, so nothing may change but who stops and starts."""
    worker = start(
        IMAGEFLEET_MODEL=MODEL,
        IMAGEFLEET_DTYPE="float32",
        IMAGEFLEET_PER_DEVICE_BATCH="2",
        IMAGEFLEET_MESH="data=1",
    )
    worker.await_log("ready after")
    whole = producer.submit("a red circle", **JOB)
    first = producer.submit("a red circle", denoising_end=0.5, num_images_per_prompt=2, **JOB)
    unfinished = first.result(TIMEOUT_S).images
    assert [image.key for image in unfinished] == [
        f"jobs/{first.id}/{index}.safetensors" for index in (0, 1)
    ]
    assert first.status().steps == 2
    [latents] = load(unfinished[0].read()).values()
    assert (latents.shape[1], str(latents.dtype)) == (4, "float32")

    second = producer.submit("a red circle", latents=unfinished[0].key, denoising_start=0.5, **JOB)
    [image] = second.result(TIMEOUT_S).images
    assert image.pixel_sha256 == whole.result(TIMEOUT_S).images[0].pixel_sha256

    # The timesteps of the checkpoint decide, so only a worker can know.
    none_left = producer.submit("a", latents=unfinished[1].key, denoising_start=0.9999, **JOB)
    with pytest.raises(JobFailed, match=r"denoising_start=0.9999: leaves none of 4 steps"):
        none_left.result(TIMEOUT_S)
    assert none_left.status().retries == 0
