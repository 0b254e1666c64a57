"""Measure how busy a whole worker keeps its devices while it encodes and stores what they make.

`python -m benchmarks.duty [--jobs 400]` starts its own Redis, an S3 server that answers after 50
ms, and one worker process at a time. The devices are those of the fake engine, eight streams of one
slot with the times that the TPU compiler estimates for Stable Diffusion 1.4 on v5e-8 (docs/tpu.md):
a step of 22 ms, 65 ms for decoding. Its images are replaced by smooth noise with grain, which takes
as long to compress as a photo. All jobs wait from the start. The rate is that between the first and
the last tenth of the images; a duty of 1 is the rate of devices that never wait.

The worker, Redis and the S3 server share the cores of this machine, so a duty below 1 may be its
fault: the table has the time for which the threads of the worker were ready to run and had no core.
It does not show real devices or the calls of their programs.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import numpy as np

from benchmarks.batching import DECODE_S, DEVICES, STEP_S
from benchmarks.report import print_json
from imagefleet import Client
from imagefleet.producer.demo.local_http import LocalServer
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.engine.contract.interface import ImageArray, ImageSpec, Shape
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.images.encode import FORMATS, encode
from imagefleet.worker.images.metadata import image_metadata

ROOT = Path(__file__).parents[1]
ANSWER_S = 0.05
STEPS = 30
MODEL = f"fake:seconds={STEP_S},decode={DECODE_S},capacity={DEVICES},streams={DEVICES}"
READY_S, JOB_S = 300.0, 600.0
IMAGE_ENDINGS = tuple(f".{extension}" for _, extension, _ in FORMATS.values())


@dataclass(frozen=True, kw_only=True)
class Case:
    """A policy, and images of one size and format."""

    policy: str
    side: int
    file_format: str

    def __str__(self) -> str:
        return f"{self.policy}, {self.side}x{self.side}, {self.file_format}"


CASES = (
    Case(policy="continuous", side=512, file_format="png"),
    Case(policy="static", side=512, file_format="png"),
    Case(policy="continuous", side=512, file_format="webp"),
    Case(policy="continuous", side=64, file_format="png"),
)
Figures = dict[str, float]


class SlowS3(BaseHTTPRequestHandler):
    """Keeps objects in memory and answers each request after `ANSWER_S`, without using a core."""

    protocol_version = "HTTP/1.1"
    objects: ClassVar[Mapping[str, bytes]] = {}
    image_times: ClassVar[list[float]] = []
    """When each image arrived."""

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        path = self.path.partition("?")[0]
        if path.endswith(IMAGE_ENDINGS):
            self.image_times.append(time.monotonic())
        elif not path.endswith(".json"):  # the worker's own check reads what it wrote
            type(self).objects = {**self.objects, path: body}
        self._answer(200)

    def do_GET(self) -> None:
        body = self.objects.get(self.path.partition("?")[0])
        self._answer(404 if body is None else 200, body or b"")

    def do_DELETE(self) -> None:
        self._answer(204)

    def _answer(self, status: int, body: bytes = b"") -> None:
        time.sleep(ANSWER_S)
        self.send_response(status)
        self.send_header("etag", '"0"')
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def measure(
    case: Case, server: LocalRedisServer, s3: LocalServer, folder: Path, jobs: int
) -> Figures:
    """Run `jobs` jobs through a worker of its own."""
    namespace = f"d{uuid.uuid4().hex[:8]}"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("IMAGEFLEET_")},
        "AWS_ACCESS_KEY_ID": "duty",
        "AWS_SECRET_ACCESS_KEY": "duty",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "IMAGEFLEET_REDIS_URL": server.url,
        "IMAGEFLEET_NAMESPACE": namespace,
        "IMAGEFLEET_MODEL": MODEL,
        "IMAGEFLEET_BATCHING": case.policy,
        "IMAGEFLEET_SHAPES": f"{case.side}x{case.side}",
        "IMAGEFLEET_STORAGE_URL": f"s3://images/jobs?endpoint_url=http://127.0.0.1:{s3.port}",
    }
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.duty", "--worker"],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        client = Client(server.url, namespace=namespace)
        client.submit("wake up", num_inference_steps=1).result(timeout=READY_S)
        SlowS3.image_times.clear()
        prompts = [f"a photo of object {number} on a wooden table" for number in range(jobs)]
        began, used, waited = time.monotonic(), cpu_s(worker.pid), waited_s(worker.pid)
        submitted = client.submit_many(prompts, num_inference_steps=STEPS, format=case.file_format)
        for job in submitted:
            job.result(timeout=JOB_S)
        seconds, used = time.monotonic() - began, cpu_s(worker.pid) - used
        waited = waited_s(worker.pid) - waited
    finally:
        worker.terminate()
        worker.wait()
    rate = steady_rate(SlowS3.image_times)
    ideal = DEVICES / (STEPS * STEP_S + DECODE_S)
    return {
        "images_per_s": rate,
        "duty": rate / ideal,
        "worker_cpu_ms_per_image": 1e3 * used / jobs,
        "worker_cores": used / seconds,
        "encode_cpu_ms": 1e3 * encode_cpu_s(case),
        "waited_ms_per_image": 1e3 * waited / jobs,
    }


def steady_rate(times: list[float]) -> float:
    """Return the images a second between the first and the last tenth of them. Whole rounds of the
    devices are counted, because images of equal steps may come eight at a time."""
    ordered, edge = sorted(times), len(times) // 10
    count = (len(ordered) - 1 - 2 * edge) // DEVICES * DEVICES
    return count / (ordered[edge + count] - ordered[edge])


def cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waited_s(pid: int) -> float:
    """Return for how long the threads of a process have waited for a core."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[1]) for file in files) / 1e9


def encode_cpu_s(case: Case) -> float:
    """Return the CPU time of encoding one image in a bare loop."""
    shape = Shape(height=case.side, width=case.side)
    pixels = noise(shape)
    metadata = image_metadata(
        job_id="j",
        spec=ImageSpec(prompt="an object", num_inference_steps=STEPS, guidance_scale=7.5),
        shape=shape,
        info=FakeEngine(shapes=[shape]).info,
        truncated=False,
        nsfw=False,
    )
    began, count = time.process_time(), 20
    for _ in range(count):
        encode(pixels, case.file_format, metadata)
    return (time.process_time() - began) / count


@cache
def noise(shape: Shape) -> ImageArray:
    """Return smooth noise with grain. `encode` makes 560 kB of 512x512 of it."""
    rng = np.random.default_rng(0)
    waves = rng.normal(size=(shape.height // 8, shape.width // 8, 3)).repeat(8, 0).repeat(8, 1)
    smooth = np.mean([np.roll(waves, (at, at), (0, 1)) for at in range(8)], axis=0)
    grain = rng.normal(size=smooth.shape)
    image: ImageArray = np.clip(128 + 60 * smooth + 4 * grain, 0, 255).astype(np.uint8)
    return image


def run_worker() -> None:
    """Run `imagefleet-worker` here, with a fake engine whose images are noise."""
    from imagefleet.worker.commands.cli import main as worker_main
    from imagefleet.worker.engine.fake import fake_batch

    def image(spec: ImageSpec, shape: Shape) -> ImageArray:
        digest = hashlib.sha256(spec.prompt.encode()).digest()
        rolled: ImageArray = np.roll(noise(shape), (digest[0], digest[1]), (0, 1))
        return rolled

    fake_batch.fake_image = image
    worker_main(args=[])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run_worker()
        return
    figures: dict[str, float] = {}
    print(
        "| case | images/s | duty | worker CPU ms an image | of it encoding | cores of the worker "
        "| waited for a core, ms an image |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    with (
        tempfile.TemporaryDirectory() as name,
        LocalRedisServer(Path(name) / "redis") as server,
        LocalServer(SlowS3) as s3,
    ):
        for case in CASES:
            got = measure(case, server, s3, Path(name), options.jobs)
            print(
                f"| {case} | {got['images_per_s']:.2f} | {got['duty']:.3f} "
                f"| {got['worker_cpu_ms_per_image']:.1f} | {got['encode_cpu_ms']:.1f} "
                f"| {got['worker_cores']:.2f} | {got['waited_ms_per_image']:.0f} |",
                flush=True,
            )
            figures |= {f"{case}, {name}": round(value, 4) for name, value in got.items()}
    print_json("duty", {**figures, "load_average": os.getloadavg()[0]})


if __name__ == "__main__":
    main()
