"""Measure one gateway under many clients: `python -m benchmarks.http`.

It starts its own Redis, two workers with the fake engine, and a gateway. One worker makes images at
once; the other takes ten minutes for a job, so that 500 event streams stay open. Then it sends 200
predictions a second for 60 s, cuts 500 streams at random moments, and sends SIGTERM while 500 are
open. For the CPU of a job it sends the same orders by the Python client, and to FastAPI with stock
Celery (`benchmarks.http.stock_app`), one after the other in the same run.

It does not show TLS, networks between hosts, a reverse proxy, or the bytes of real images.
"""

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.http.clients import Connection, Load, Pool, send_steadily
from benchmarks.report import parser_of, print_json
from imagefleet import Client
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import Worker, until

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_NAMESPACE: Final = "httpload"
_SLOW: Final = "fake:seconds=600,name=slow"


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has used: fields 14 and 15 of proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


class Fleet:
    """The processes of one run."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.server = stack.enter_context(LocalRedisServer(folder / "redis"))
        self.redis = connect(self.server.url)
        self._stack, self._folder = stack, folder
        self._settings = {
            "IMAGEFLEET_REDIS_URL": self.server.url,
            "IMAGEFLEET_NAMESPACE": _NAMESPACE,
            "IMAGEFLEET_STORAGE_URL": f"file://{folder}/store",
            "IMAGEFLEET_MAY_DIFFER": "model",
        }
        for model in ("fake:seconds=0,capacity=64", _SLOW):
            worker = self.start(IMAGEFLEET_MODEL=model)
            worker.await_log("ready after")
        self.client = stack.enter_context(Client(self.server.url, namespace=_NAMESPACE))

    def start(self, *command: str, **settings: str) -> Worker:
        """Start a process, which ends with the run."""
        command = command or ("-m", "imagefleet.worker")
        worker = Worker(self._folder, {**self._settings, **settings}, command)
        self._stack.callback(worker.kill)
        return worker

    def gateway(self) -> GatewayProcess:
        """Start a gateway."""
        return start_gateway(self.start)

    def subscriptions(self) -> int:
        """Return how many jobs are watched."""
        return len(self.redis.pubsub_channels(f"{_NAMESPACE}:changes:*"))


def order(number: int) -> dict[str, Any]:
    """Return the body of one prediction."""
    return {"input": {"prompt": f"prompt number {number}", "num_inference_steps": 4}}


async def open_streams(url: str, count: int) -> list[Connection]:
    """Return connections with open event streams of jobs that take long."""
    pool = Pool(url)
    streams = []
    for number in range(count):
        body = order(number)
        body["input"]["model"] = "slow"
        status, prediction = await pool.post("/v1/predictions", body)
        assert status == 201, prediction
        stream = await Connection.open(url)
        assert await stream.open_stream(f"/v1/predictions/{prediction['id']}/stream") == 200
        streams.append(stream)
    pool.close()
    return streams


async def load_with_streams(
    fleet: Fleet, gateway: GatewayProcess, asked: argparse.Namespace
) -> dict[str, Any]:
    """Return what `asked.rate` submissions a second cost while streams are open."""
    pid = gateway.process.process.pid
    pool = Pool(gateway.url)
    await send_steadily(lambda n: pool.post("/v1/predictions", order(n)), asked.rate, 10)
    connections = len(fleet.redis.client_list())
    streams = await open_streams(gateway.url, asked.streams)
    before, cpu = memory_mb(pid), cpu_s(pid)
    load = await send_steadily(
        lambda n: pool.post("/v1/predictions", order(n)), asked.rate, asked.seconds
    )
    used, after = cpu_s(pid) - cpu, memory_mb(pid)
    pool.close()
    await _cut_at_random(streams)
    await asyncio.to_thread(until, lambda: fleet.subscriptions() == 0, 60)
    return {
        "streams": asked.streams,
        "per_s": asked.rate,
        "requests": len(load.seconds),
        "errors": load.errors,
        **_percentiles(load),
        "cpu_ms_with_streams": round(1e3 * used / len(load.seconds), 3),
        "memory_before_mb": round(before, 1),
        "memory_after_mb": round(after, 1),
        "redis_clients_before": connections,
        "redis_clients_after": len(fleet.redis.client_list()),
        "subscriptions_after": fleet.subscriptions(),
    }


def _percentiles(load: Load) -> dict[str, float]:
    ordered = sorted(load.seconds)
    return {
        f"{name}_ms": round(1e3 * ordered[int(share * (len(ordered) - 1))], 1)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


async def _cut_at_random(streams: list[Connection]) -> None:
    async def cut(stream: Connection) -> None:
        await asyncio.sleep(random.uniform(0, 5))
        stream.close()

    await asyncio.gather(*map(cut, streams))


def seconds_to_end(gateway: GatewayProcess, streams: int) -> float:
    """Return how long a gateway takes to end while streams are open. Each gets a last event."""

    async def run() -> float:
        opened = await open_streams(gateway.url, streams)
        started = time.monotonic()
        gateway.process.process.send_signal(signal.SIGTERM)
        texts = await asyncio.gather(*(_read_all(each) for each in opened))
        assert all(b"event: " in text for text in texts), "a stream ended without an event"
        await asyncio.to_thread(gateway.process.process.wait, 60)
        return time.monotonic() - started

    return asyncio.run(run())


async def _read_all(stream: Connection) -> bytes:
    text = b""
    with suppress(ConnectionError):
        while part := await stream.read():
            text += part
    return text


def cpu_per_request(
    url: str, pid: int, rate: float, seconds: float, path: str, body: Callable[[int], Any]
) -> tuple[float, int]:
    """Return the milliseconds of CPU that a server process uses for one request, and the errors."""

    async def run() -> tuple[float, int]:
        pool = Pool(url)
        await send_steadily(lambda n: pool.post(path, body(n)), rate, 3)
        cpu = cpu_s(pid)
        load = await send_steadily(lambda n: pool.post(path, body(n)), rate, seconds)
        pool.close()
        return 1e3 * (cpu_s(pid) - cpu) / len(load.seconds), load.errors

    return asyncio.run(run())


def cpu_of_python_client(client: Client, jobs: int) -> float:
    """Return the milliseconds of CPU that the Python client uses to submit one job."""
    started = time.process_time()
    for number in range(jobs):
        client.submit(f"prompt number {number}", num_inference_steps=4)
    return 1e3 * (time.process_time() - started) / jobs


def stock_app(fleet: Fleet, stack: ExitStack) -> tuple[str, int]:
    """Start FastAPI with stock Celery. Return its address and process id."""
    command = [sys.executable, "-m", "benchmarks.http.stock_app", fleet.server.url]
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(process.kill)
    assert process.stdout is not None
    return f"http://127.0.0.1:{int(process.stdout.readline())}", process.pid


def measure_cpu(fleet: Fleet, stack: ExitStack, asked: argparse.Namespace) -> dict[str, float]:
    """Return the milliseconds of CPU for one job by each way, without streams."""
    gateway = fleet.gateway()
    pid = gateway.process.process.pid
    ours, errors = cpu_per_request(
        gateway.url, pid, asked.rate / 2, asked.cpu_seconds, "/v1/predictions", order
    )
    url, pid = stock_app(fleet, stack)
    stock, stock_errors = cpu_per_request(
        url, pid, asked.rate / 2, asked.cpu_seconds, "/images", lambda n: order(n)["input"]
    )
    client = cpu_of_python_client(fleet.client, 2_000)
    return {
        "cpu_errors_gateway": errors,
        "cpu_errors_stock": stock_errors,
        "cpu_ms_gateway": round(ours, 3),
        "cpu_ms_stock": round(stock, 3),
        "cpu_ms_client": round(client, 3),
        "gateway_by_stock": round(ours / stock, 2),
        "gateway_by_client": round(ours / client, 2),
    }


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--streams", type=int, default=500, help="open event streams")
    parser.add_argument("--rate", type=float, default=200.0, help="submissions a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="for so long")
    parser.add_argument("--cpu-seconds", type=float, default=20.0, help="for each way of a job")
    return parser.parse_args()


def main() -> None:
    asked = _arguments()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fleet = Fleet(stack, folder)
        figures: dict[str, Any] = measure_cpu(fleet, stack, asked)
        gateway = fleet.gateway()
        figures |= asyncio.run(load_with_streams(fleet, gateway, asked))
        figures["ends_in_s"] = round(seconds_to_end(gateway, asked.streams), 2)
    for name, value in figures.items():
        print(f"{name:24} {value:>12}")
    print_json("http", {**vars(asked), **figures})


if __name__ == "__main__":
    main()
