"""How long until the engine is ready: everything compiled, programs from JAX's cache, programs
reloaded from this host's shelf, or from a store that another host filled.

`python benchmarks/start.py [model] [--devices 8] [--per-device-batch 1]`. A process for each case,
timed from its start, imports and all; CPU seconds stand beside, for machines that do other work.

What it does not show: Redis, storage and the queue, which a worker checks first; the download of a
checkpoint; accelerators, where compiling takes minutes.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import print_json
from imagefleet.shared.storage.folder import FolderStore
from imagefleet.worker.engine.load import load_engine

Row = dict[str, float]


def start(model: str, devices: int, per_device_batch: int, cache_dir: Path, store: str) -> None:
    """In a process of its own: start, and print what came of it."""
    begun = time.perf_counter()
    engine = load_engine(
        model,
        devices=devices,
        per_device_batch=per_device_batch,
        cache_dir=cache_dir,
        programs=FolderStore(Path(store)) if store else None,
        programs_secret="a benchmark's",
    )
    loaded = time.perf_counter()
    engine.warm()
    print(json.dumps({"load_s": loaded - begun, "warm_s": time.perf_counter() - loaded}))


def timed(given: argparse.Namespace, cache_dir: Path, store: Path | None) -> Row:
    """A start, from the outside."""
    size = [given.model, "--devices", str(given.devices)]
    size += ["--per-device-batch", str(given.per_device_batch)]
    places = ["--cache-dir", str(cache_dir), "--store", str(store or "")]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    child = subprocess.run(
        [sys.executable, __file__, *size, *places], stdout=subprocess.PIPE, text=True, check=True
    )
    seconds = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    inner: Row = json.loads(child.stdout.strip().splitlines()[-1])
    return {"seconds": seconds, "cpu_s": cpu, **inner}


def cases(given: argparse.Namespace, folder: Path) -> dict[str, Row]:
    """One after the other: the first fills what the others find."""
    here, elsewhere, store = folder / "here", folder / "elsewhere", folder / "store"
    rows = {
        "cold": timed(given, here, store),
        "reloaded, own": timed(given, here, None),
        "reloaded, shared": timed(given, elsewhere, store),
    }
    shutil.rmtree(here / "executables")
    return {**rows, "JAX's cache": timed(given, here, None)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="shapes")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--per-device-batch", type=int, default=1)
    parser.add_argument("--cache-dir", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cache_dir:
        start(given.model, given.devices, given.per_device_batch, given.cache_dir, given.store)
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = cases(given, Path(folder))
    names = list(rows["cold"])
    print(f"{'start':<18}" + "".join(f"{name:>10}" for name in names))
    for case, row in rows.items():
        print(f"{case:<18}" + "".join(f"{row[name]:>10.1f}" for name in names))
    rounded = {case: {name: round(v, 2) for name, v in row.items()} for case, row in rows.items()}
    about = {"model": given.model, "devices": given.devices, "starts": rounded}
    print_json("start", about)


if __name__ == "__main__":
    main()
