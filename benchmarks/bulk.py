"""A dataset against the bare engine: what all that keeps, encodes and stores costs the devices.

`python benchmarks/bulk.py` starts its own Redis (AOF, `appendfsync always`) and one worker at a
time, with the fake engine at 50 ms a batch, then with the bundled model. The peer is the same
engine in a loop with nothing around it, before and after, in the same run. Time counts from the
order to the end of the run: the first shard's way in and the last one's way out are in it.

On a machine with other work, CPU time a picture is the fairer comparison. With the fake engine,
which sleeps, only the share is.

What it does not show: several workers, a store over a network, pictures larger than 64x64.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import print_json
from imagefleet import Client
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.engine.interface import Engine, ImageSpec
from imagefleet.worker.engine.load import load_engine
from imagefleet.worker.settings import WorkerSettings

ROOT = Path(__file__).parents[1]
BARE_BATCHES = 20


@dataclass(frozen=True)
class Case:
    """One engine and how much it is given."""

    name: str
    model: str
    pictures: int
    shard_size: int
    steps: int | None


CASES = [
    Case("fake, 50 ms a batch", "fake:seconds=0.0125,capacity=8", 4_000, 500, 4),
    Case("bundled model", "shapes", 320, 80, None),
]


def measure(case: Case, folder: Path, server: LocalRedisServer) -> dict[str, float | str]:
    """Pictures a second of the bare loop and of a run, and the worker's CPU a picture."""
    engine = load_bare(case)
    before = bare_loop(engine, case)
    namespace = f"b{uuid.uuid4().hex[:8]}"
    prompts = folder / f"{namespace}.txt"
    prompts.write_text("".join(f"a red circle, number {n}\n" for n in range(case.pictures)))
    environment = {
        **os.environ,
        "IMAGEFLEET_REDIS_URL": server.url,
        "IMAGEFLEET_NAMESPACE": namespace,
        "IMAGEFLEET_MODEL": case.model,
        "IMAGEFLEET_STORAGE_URL": f"{folder.as_uri()}/jobs",
    }
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "imagefleet.worker"],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        client = Client(server.url, namespace=namespace)
        client.submit("wake up").result(timeout=300)
        used = cpu_s(worker.pid)
        started = time.perf_counter()
        options = {} if case.steps is None else {"num_inference_steps": case.steps}
        run = client.bulk(
            prompts,
            (folder / namespace).as_uri(),
            shard_size=case.shard_size,
            **options,
        )
        for _ in run.statuses(every_s=0.05):
            assert time.perf_counter() - started < 1_800
        seconds = time.perf_counter() - started
        used = cpu_s(worker.pid) - used
    finally:
        worker.terminate()
        worker.wait()
    after = bare_loop(engine, case)
    bare = (before.pictures_per_s + after.pictures_per_s) / 2
    return {
        "case": case.name,
        "bare_pictures_per_s": bare,
        "bulk_pictures_per_s": case.pictures / seconds,
        "share": case.pictures / seconds / bare,
        "bare_cpu_ms_a_picture": (before.cpu_ms_a_picture + after.cpu_ms_a_picture) / 2,
        "worker_cpu_ms_a_picture": 1e3 * used / case.pictures,
    }


def load_bare(case: Case) -> Engine:
    """As a worker of `case` would, warm."""
    settings = WorkerSettings.load(model=case.model)
    engine = load_engine(
        settings.model,
        shapes=settings.declared_shapes(),
        per_device_batch=settings.per_device_batch,
        mesh=settings.mesh,
        devices=settings.devices,
        dtype=settings.dtype,
        cache_dir=settings.cache_dir,
        max_num_inference_steps=settings.max_num_inference_steps,
        safety_checker=settings.safety_checker,
    )
    engine.warm()
    return engine


@dataclass(frozen=True, kw_only=True)
class Bare:
    """What the engine does by itself."""

    pictures_per_s: float
    cpu_ms_a_picture: float


def bare_loop(engine: Engine, case: Case) -> Bare:
    """The engine in a loop, its pictures fetched but kept by nobody."""
    info = engine.info
    specs = [
        ImageSpec(
            prompt="a red circle",
            seed=number,
            num_inference_steps=case.steps or info.default_num_inference_steps,
            guidance_scale=info.default_guidance_scale,
            scheduler=info.default_scheduler,
        )
        for number in range(engine.capacity)
    ]
    started, used = time.perf_counter(), time.process_time()
    for _ in range(BARE_BATCHES):
        rendering = engine.render(specs, info.shapes[0])
        for _ in rendering:
            pass
        rendering.pictures()
    pictures = BARE_BATCHES * engine.capacity
    return Bare(
        pictures_per_s=pictures / (time.perf_counter() - started),
        cpu_ms_a_picture=1e3 * (time.process_time() - used) / pictures,
    )


def cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[case.model.partition(":")[0] for case in CASES])
    only = parser.parse_args().only
    found = []
    for case in CASES:
        if only is None or case.model.startswith(only):
            with (
                tempfile.TemporaryDirectory() as name,
                LocalRedisServer(Path(name) / "r") as server,
            ):
                found.append(measure(case, Path(name), server))
    columns = list(found[0])
    print("  ".join(f"{column:>24}" for column in columns))
    for row in found:
        print("  ".join(_shown(value) for value in row.values()))
    print_json("bulk", {"cases": found})


def _shown(value: float | str) -> str:
    return f"{value:>24}" if isinstance(value, str) else f"{value:>24.3f}"


if __name__ == "__main__":
    main()
