"""Measure the memory of one gateway under large requests: `python -m benchmarks.http.memory`.

It starts its own Redis, a worker with the fake engine, and a gateway. Then many clients send large
bodies at the same moment, each with two random images in base64; then many ask at the same moment
for all 64 outputs of one job in base64. A client that is refused with 503 asks again after the
seconds of `Retry-After`. Meanwhile another process asks `/healthz` every 20 ms: its longest answer
is how long the event loop stood still, beside what two cores with all processes on them cost.

It does not show the memory that Pillow takes for masks, nor slow networks.
"""

import argparse
import asyncio
import base64
import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.report import parser_of, print_json
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import Worker

_PROBE_S: Final = 0.02
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_OUTPUTS: Final = 64
_SIZE: Final = 2_048
"""A job has this height and width. Its latents have 1 MB, and are as incompressible as photos."""


@dataclass(kw_only=True)
class Load:
    """What came of requests at the same moment."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0
    grown_mb: float = 0.0
    """The most resident memory meanwhile, less that before."""
    stall_ms: float = 0.0
    """The longest answer of `/healthz`."""


def _of_status(pid: int, name: str) -> float:
    """Return a size in proc(5), `/proc/PID/status`, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [each for each in lines if each.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024 / 1e6


async def _send(client: httpx.AsyncClient, path: str, content: bytes, load: Load, key: str) -> None:
    headers = {"content-type": "application/json"}
    if key:
        headers["idempotency-key"] = key
    while True:
        async with client.stream("POST", path, content=content, headers=headers) as answer:
            async for _ in answer.aiter_raw():
                pass
        load.statuses[answer.status_code] += 1
        if answer.status_code != 503:
            return
        await asyncio.sleep(float(answer.headers["retry-after"]))


def _probe(url: str, ended: Any, longest_s: Any) -> None:
    """Ask for `/healthz` until `ended` is set, and write down the longest answer."""
    with httpx.Client(base_url=url, timeout=None) as client:
        while not ended.wait(_PROBE_S):
            started = time.monotonic()
            client.get("/healthz")
            longest_s.value = max(longest_s.value, time.monotonic() - started)


@contextmanager
def _probed(url: str, load: Load) -> Iterator[None]:
    """Probe while the block runs."""
    processes = multiprocessing.get_context("spawn")
    ended, longest_s = processes.Event(), processes.Value("d", 0.0)
    prober = processes.Process(target=_probe, args=(url, ended, longest_s))
    prober.start()
    while not longest_s.value:
        time.sleep(_PROBE_S)
    yield
    ended.set()
    prober.join()
    load.stall_ms = 1e3 * longest_s.value


async def _measure(
    gateway: GatewayProcess, path: str, contents: list[bytes], key: str = ""
) -> Load:
    """Send these bodies at the same moment. Return what came of them."""
    pid, load = gateway.process.process.pid, Load()
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew, see proc(5)
    before, started = _of_status(pid, "VmRSS"), time.monotonic()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=None, limits=limits) as client:
        with _probed(gateway.url, load):
            await asyncio.gather(*(_send(client, path, each, load, key) for each in contents))
    load.seconds = time.monotonic() - started
    load.grown_mb = _of_status(pid, "VmHWM") - before
    return load


def _body(image_mb: float, number: int) -> bytes:
    """Return the body of a prediction that starts from two images."""
    image = _PNG + number.to_bytes(8, "big") + os.urandom(int(image_mb * 1e6))
    address = "data:image/png;base64," + base64.b64encode(image).decode()
    given: dict[str, Any] = {"prompt": "a", "image": address, "mask_image": address}
    return json.dumps({"input": given}).encode()


def _start_fleet(stack: ExitStack, folder: Path, bytes_held: str) -> GatewayProcess:
    server = stack.enter_context(LocalRedisServer(folder / "redis"))
    settings = {
        "IMAGEFLEET_REDIS_URL": server.url,
        "IMAGEFLEET_STORAGE_URL": f"file://{folder}/store",
        "IMAGEFLEET_MODEL": f"fake:capacity={_OUTPUTS}",
        "IMAGEFLEET_SHAPES": f"{_SIZE}x{_SIZE}",
    }
    if bytes_held:
        settings["IMAGEFLEET_HTTP_MAX_HELD_BYTES"] = bytes_held

    def start(*command: str, **more: str) -> Worker:
        command = command or ("-m", "imagefleet.worker")
        worker = Worker(folder, {**settings, **more}, command)
        stack.callback(worker.kill)
        return worker

    start().await_log("ready after")
    return start_gateway(start)


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--bodies", type=int, default=24, help="large bodies at the same moment")
    parser.add_argument("--image-mb", type=float, default=12.0, help="of each of their two images")
    parser.add_argument("--answers", type=int, default=12, help="large answers at the same moment")
    parser.add_argument("--held", default="", help="IMAGEFLEET_HTTP_MAX_HELD_BYTES of the gateway")
    return parser.parse_args()


def _figures(name: str, load: Load) -> dict[str, Any]:
    return {
        f"{name}_statuses": dict(sorted(load.statuses.items())),
        f"{name}_seconds": round(load.seconds, 1),
        f"{name}_grown_mb": round(load.grown_mb),
        f"{name}_stall_ms": round(load.stall_ms),
    }


def main() -> None:
    asked = _arguments()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gateway = _start_fleet(stack, folder, asked.held)
        pid = gateway.process.process.pid
        figures: dict[str, Any] = {"resident_mb": round(_of_status(pid, "VmRSS"))}
        order = {"prompt": "a", "n": _OUTPUTS, "denoising_end": 0.8, "num_inference_steps": 4}
        content = json.dumps(order).encode()
        path = "/v1/images/generations"
        asyncio.run(_measure(gateway, path, [content], "first"))  # makes the outputs
        answers = asyncio.run(_measure(gateway, path, [content] * asked.answers, "first"))
        figures |= _figures("answers", answers)
        bodies = [_body(asked.image_mb, number) for number in range(asked.bodies)]
        figures["body_mb"] = round(len(bodies[0]) / 1e6, 1)
        figures |= _figures("bodies", asyncio.run(_measure(gateway, "/v1/predictions", bodies)))
    for name, value in figures.items():
        print(f"{name:24} {value!s:>24}")
    print_json("http-memory", {**vars(asked), **figures})


if __name__ == "__main__":
    main()
