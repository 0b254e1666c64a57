"""Every file that a job can name is bounded: no file costs a worker its memory, or others time."""

import re
from pathlib import Path
from typing import Final

from imagefleet import Client
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.parameter_types import MAX_INPUT_BYTES
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.contract.latents_file import MAX_HEADER_BYTES, max_file_bytes
from imagefleet.worker.engine.contract.unfinished_latents import LatentFormat
from imagefleet.worker.images.decode_image import MAX_PIXELS, MAX_SIDE
from imagefleet.worker.images.file_structure import MAX_PARTS, MAX_SCANS
from imagefleet.worker.jobs.input_images import MAX_DECODING
from imagefleet.worker.settings.worker_settings import WorkerSettings
from tests.support.hanging import HangingServer
from tests.support.http_client import http_get
from tests.support.image_server import ImageServer
from tests.support.jobs import finish
from tests.support.latents import file_of_empty_tensors
from tests.support.processes import StartWorker, Worker, until

_TENSORS: Final = 290_000
"""The header of this file has 19 MB."""
_HOSTILE_JOBS: Final = 24
_MAX_GROWTH_MB: Final = 200
"""Reading one such file takes 530 MB without a bound."""
_SECURITY: Final = Path(__file__).parents[2] / "docs" / "security.md"


def _peak_mb(worker: Worker) -> int:
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) // 1_000  # type: ignore[index]


def test_latents_with_very_many_tensors_cost_a_worker_no_memory(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    bomb = file_of_empty_tensors(_TENSORS)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "bomb.safetensors").write_bytes(bomb)
    worker = start(IMAGEFLEET_CALLBACK_ALLOW="127.0.0.0/8")
    [before] = producer.submit_many(["before"])
    assert finish(producer, [before]) == {State.SUCCEEDED}
    used_mb = _peak_mb(worker)
    with ImageServer({"/bomb": bomb}) as server:
        addresses = ["bomb.safetensors", f"{server.url}/bomb"] * (_HOSTILE_JOBS // 2)
        hostile = [
            producer.submit("a", latents=each, denoising_start=0.5, tenant="hostile")
            for each in addresses
        ]
        other = producer.submit("a", tenant="other", priority=0)
        assert finish(producer, [other]) == {State.SUCCEEDED}
        assert finish(producer, hostile) == {State.FAILED}
    errors = {str(job.status().error) for job in hostile}
    assert len(errors) == 2, errors
    assert all("must be at most 263,176 bytes" in each for each in errors), errors
    assert _peak_mb(worker) < used_mb + _MAX_GROWTH_MB


def test_jobs_that_a_slow_server_keeps_out_of_a_worker_are_counted(
    start: StartWorker, producer: Client
) -> None:
    worker = start(
        IMAGEFLEET_CALLBACK_ALLOW="127.0.0.1",
        IMAGEFLEET_INPUT_IMAGE_JOBS="2",
        IMAGEFLEET_METRICS_HOST="127.0.0.1",
        IMAGEFLEET_METRICS_PORT="0",
    )
    worker.await_log("ready after")
    port = re.search(r"metrics and health on 127\.0\.0\.1 port (\d+)", worker.output())
    assert port is not None

    def delays() -> int:
        page = http_get(int(port[1]), "/metrics")[1]
        found = re.search(r"^imagefleet_input_image_delays_total\{.*\} (\d+)", page, re.MULTILINE)
        assert found is not None
        return int(found[1])

    assert delays() == 0
    with HangingServer("127.0.0.1") as server:
        image = f"http://127.0.0.1:{server.port}/a.png"
        producer.submit_many(["a", "b", "c"], image=image, strength=0.5)
        until(lambda: delays() >= 2)


def test_the_documented_bounds_are_those_of_the_code() -> None:
    page = _SECURITY.read_text()
    lines = {line.split("|")[1].strip(): line for line in page.splitlines() if line.count("|") > 4}
    images, latents = lines["`image`, `mask_image`, `control_image`"], lines["`latents`"]
    for number in (MAX_INPUT_BYTES, MAX_PIXELS, MAX_SIDE, MAX_SCANS, MAX_PARTS):
        assert f" {number:,}" in images
    fetches = WorkerSettings.model_fields["input_image_fetches"].default
    assert f"({fetches})" in images
    assert f"; {MAX_DECODING} files are decoded" in images
    sd15 = LatentFormat(channels=4, pixels_per_latent=8, scaling="")
    largest = max_file_bytes(sd15, Shape(height=512, width=512))
    assert f"{MAX_HEADER_BYTES + 8:,} and 4 for each value" in latents
    assert f"{largest:,} for an image of 512×512" in latents
    assert f"a header of {MAX_HEADER_BYTES:,} bytes" in latents
