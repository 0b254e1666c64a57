"""Measure the engine alone: images per second on one device and on all of them.

`python -m benchmarks.engine [model] [--batch 8] [--steps 20] [--devices 1,8]`. On a CPU the devices
are virtual and share the same cores. Every row generates the same batch, so that fewer devices have
more slots each.

It does not show queues, encoding and uploads; other engines; or a first start, because `warm_s`
depends on what the executable cache already holds.
"""

import argparse
import platform
import time
from pathlib import Path

import jax

from benchmarks.report import print_json
from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.placement.mesh import start_backend

ROUNDS = 3


def figures(model: str, devices: int, batch: int, steps: int, cache_dir: Path) -> dict[str, float]:
    """Measure the load and warm times, and the best step time and rate of some rounds."""
    started = time.perf_counter()
    engine = load_engine(
        model, devices=devices, per_device_batch=batch // devices, cache_dir=cache_dir
    )
    loaded = time.perf_counter()
    engine.warm()
    warm = time.perf_counter()
    specs = [
        ImageSpec(
            prompt=f"a red circle {seed}", seed=seed, num_inference_steps=steps, guidance_scale=3.0
        )
        for seed in range(batch)
    ]
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        engine.start_batch(specs, engine.info.shapes[0]).images()
        seconds.append(time.perf_counter() - begun)
    return {
        "load_s": loaded - started,
        "warm_s": warm - loaded,
        "step_ms": 1e3 * min(seconds) / steps,
        "images_per_s": batch / min(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="shapes")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--devices", default="1,8")
    parser.add_argument("--cache-dir", type=Path, default=Path("~/.cache/imagefleet").expanduser())
    options = parser.parse_args()
    counts = [int(count) for count in options.devices.split(",")]
    start_backend(max(counts))
    rows = {
        n: figures(options.model, n, options.batch, options.steps, options.cache_dir)
        for n in counts
    }
    print(f"{'devices':>8}" + "".join(f"{name:>16}" for name in rows[counts[0]]))
    for devices, row in rows.items():
        print(f"{devices:>8}" + "".join(f"{value:>16.2f}" for value in row.values()))
    rounded = {n: {name: round(v, 3) for name, v in row.items()} for n, row in rows.items()}
    about = {
        "model": options.model,
        "batch": options.batch,
        "steps": options.steps,
        "devices": rounded,
    }
    kind = f"{jax.devices()[0].device_kind}, {platform.machine()}"
    print_json("engine", about, processor=kind)


if __name__ == "__main__":
    main()
