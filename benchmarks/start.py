"""Measure how long the engine takes until it is ready, with different caches.

`python -m benchmarks.start [model] [--devices 8] [--per-device-batch 1]` starts one process per
case: everything compiled; executables from this host's cache; executables from a store that another
host filled; and JAX's own cache. The time includes the imports. CPU seconds are printed too, for
machines that do other work, and the seconds of a first image after the start.

It does not show Redis, storage and the queue, which a worker checks first; the download of a
checkpoint; or accelerators, where compiling takes minutes.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import print_json
from imagefleet.shared.process.garbage import collecting_later
from imagefleet.shared.storage.folder import FolderStore
from imagefleet.worker.engine.contract.interface import Engine, ImageSpec
from imagefleet.worker.engine.loading.load_engine import SharedStores, load_engine

Row = dict[str, float]


def start(model: str, devices: int, per_device_batch: int, cache_dir: Path, store: str) -> None:
    """Start the engine in this process, and print the times as JSON."""
    begun = time.perf_counter()
    shared = SharedStores(
        executables=FolderStore(Path(store)) if store else None, secret="a benchmark's"
    )
    with collecting_later():  # as a worker does
        engine = load_engine(
            model,
            devices=devices,
            per_device_batch=per_device_batch,
            cache_dir=cache_dir,
            shared=shared,
        )
        loaded = time.perf_counter()
        engine.warm()
    ready, cpu_s = time.perf_counter(), time.process_time()
    seconds = {"load_s": loaded - begun, "warm_s": ready - loaded, "image_s": first_image(engine)}
    print(json.dumps({"cpu_s": cpu_s, **seconds}))


def first_image(engine: Engine) -> float:
    """Return the seconds of one image of four steps right after the start."""
    info, begun = engine.info, time.perf_counter()
    spec = ImageSpec(
        prompt="a red star",
        num_inference_steps=4,
        guidance_scale=info.default_guidance_scale,
        scheduler=info.default_scheduler,
    )
    engine.start_batch([spec], info.shapes[0]).images()
    return time.perf_counter() - begun


def timed(options: argparse.Namespace, cache_dir: Path, store: Path | None) -> Row:
    """Measure a start from outside its process, without the image after it."""
    size = [options.model, "--devices", str(options.devices)]
    size += ["--per-device-batch", str(options.per_device_batch)]
    places = ["--cache-dir", str(cache_dir), "--store", str(store or "")]
    begun = time.perf_counter()
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.start", *size, *places],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - begun
    inner: Row = json.loads(child.stdout.strip().splitlines()[-1])
    return {"seconds": seconds - inner["image_s"], **inner}


def cases(options: argparse.Namespace, folder: Path) -> dict[str, Row]:
    """Run the cases in order, since the first one fills the caches of the others."""
    here, elsewhere, store = folder / "here", folder / "elsewhere", folder / "store"
    rows = {
        "cold": timed(options, here, store),
        "reloaded, own": timed(options, here, None),
        "reloaded, shared": timed(options, elsewhere, store),
    }
    shutil.rmtree(here / "executables")
    return {**rows, "JAX's cache": timed(options, here, None)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="shapes")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--per-device-batch", type=int, default=1)
    parser.add_argument("--cache-dir", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cache_dir:
        start(
            options.model,
            options.devices,
            options.per_device_batch,
            options.cache_dir,
            options.store,
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = cases(options, Path(folder))
    names = list(rows["cold"])
    print(f"{'start':<18}" + "".join(f"{name:>10}" for name in names))
    for case, row in rows.items():
        print(f"{case:<18}" + "".join(f"{row[name]:>10.1f}" for name in names))
    rounded = {case: {name: round(v, 2) for name, v in row.items()} for case, row in rows.items()}
    about = {"model": options.model, "devices": options.devices, "starts": rounded}
    print_json("start", about)


if __name__ == "__main__":
    main()
