"""Two jobs of real workers, or a job and a row, share the steps of one image."""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load, load_file, save

from imagefleet import Client, JobFailed
from tests.support.processes import ROOT, StartWorker, Worker
from tests.unit.engine.parity import FOLDER, worst, write_known
from tools.parity.fuzz.draft import noise
from tools.parity.known.checkpoints import KnownCheckpoint
from tools.parity.known.ensemble_case import (
    BASE,
    GUIDANCE,
    NEGATIVE,
    PROMPT,
    REFINER,
    SIDE,
    SPLIT,
    STEPS,
)

MODEL: Final = str(ROOT / "tests" / "fixtures" / "parity" / "xl")
TIMEOUT_S: Final = 300
JOB: Final[dict[str, Any]] = {
    "seed": 7,
    "num_inference_steps": 4,
    "scheduler": "ddim",
    "guidance_scale": 3.0,
}
ANSWERS: Final = load_file(FOLDER / "ensemble.safetensors")
"""What diffusers' two pipelines make of the case (`tools/parity/known/ensemble.py`)."""
CASE: Final[dict[str, Any]] = {
    "prompt": PROMPT,
    "negative_prompt": NEGATIVE,
    "num_inference_steps": STEPS,
    "guidance_scale": GUIDANCE,
    "scheduler": "euler",
}
EULER_FIRST_TIMESTEP: Final = 831
"""Of the 6 steps of the case, which the checkpoints space as 1, 167, 333 … 831."""


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


def test_a_refiner_in_another_worker_makes_the_images_of_diffusers(
    producer: Client, start: StartWorker, tmp_path: Path
) -> None:
    """The base starts from the noise that diffusers got, as latents: 0.0001 leaves no step out."""
    workers = [
        _start_tiny(start, tmp_path / "base", BASE),
        _start_tiny(start, tmp_path / "refiner", REFINER),
    ]
    for worker in workers:
        worker.await_log("ready after")

    base = producer.submit(
        latents=save({"latents": _first_latents()}),
        denoising_start=0.0001,
        denoising_end=SPLIT,
        model="base",
        **CASE,
    )
    [unfinished] = base.result(TIMEOUT_S).images
    [latents] = load(unfinished.read()).values()
    assert worst(latents, ANSWERS["euler|base"]) < 2e-5

    refine: dict[str, Any] = {**CASE, "model": "refiner", "denoising_start": SPLIT}
    job = producer.submit(latents=unfinished.key, **refine)
    [image] = job.result(TIMEOUT_S).images
    assert _most_levels(image.open()) <= 1

    rows = [{"prompt": refine.pop("prompt"), "latents": unfinished.key}]
    run = producer.bulk(rows, tmp_path / "data", format="files", **refine)
    assert run.wait(TIMEOUT_S).images == 1
    with Image.open(tmp_path / "data" / "00000" / "000000000-00.png") as of_row:
        assert _most_levels(of_row) <= 1
    document = json.loads((tmp_path / "data" / "00000.jsonl").read_bytes())
    assert document["original"].startswith("sha256:")
    assert (document["latents"], document["denoising_start"]) == (unfinished.key, SPLIT)
    report = run.verify(sample=1)
    assert (report.clean, report.regenerated, report.max_difference) == (True, 1, 0)


def _most_levels(image: Image.Image) -> int:
    """Return the largest difference from the image of diffusers, in levels of 255."""
    return int(np.abs(np.asarray(image).astype(int) - ANSWERS["euler|image"][0]).max())


def _start_tiny(start: StartWorker, folder: Path, checkpoint: KnownCheckpoint) -> Worker:
    write_known(folder, checkpoint)
    return start(
        IMAGEFLEET_MAY_DIFFER="model",
        IMAGEFLEET_MODEL=str(folder),
        IMAGEFLEET_DTYPE="float32",
        IMAGEFLEET_SHAPES=f"{SIDE}x{SIDE}",
        IMAGEFLEET_PER_DEVICE_BATCH="1",
        IMAGEFLEET_MESH="data=1",
        JAX_DISABLE_MOST_OPTIMIZATIONS="true",
    )


def _first_latents() -> NDArray[np.float32]:
    """Return the noise that diffusers got, as `euler` scales it before the first step."""
    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    kept = np.prod(1 - betas[: EULER_FIRST_TIMESTEP + 1])
    return noise((1, 4, SIDE // 8, SIDE // 8)) / np.float32(kept**0.5)
