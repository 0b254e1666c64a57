"""Measure whether a seed gives the same image on every batch size, slot and mesh.

`python -m benchmarks.seeds [model]` generates eight jobs of mixed steps, guidance and schedulers
with several batch sizes and meshes, in two orders, and compares the images with the first row's. It
also prints how many bytes of the weights each device holds. Each row has its own process. On a CPU
the devices are virtual.

It does not show accelerators, whose matmuls round in another way, or other jax versions.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.report import print_json

CASES = (
    ("data=8", 1),
    ("data=1", 1),
    ("data=1", 8),
    ("data=4", 1),
    ("data=4", 2),
    ("data=4,model=2", 2),
    ("data=2,model=4", 4),
)
"""(mesh, per-device batch)"""
JOBS = 8


def generate(model: str, mesh: str, per_device_batch: int, cache_dir: Path, out: Path) -> None:
    """Generate and save the jobs in both orders, so that each one is in two slots."""
    import jax

    from imagefleet.worker.engine.diffusion_engine import DiffusionEngine
    from imagefleet.worker.engine.interface import ImageSpec
    from imagefleet.worker.engine.load_engine import load_engine

    engine = load_engine(
        model,
        mesh=mesh,
        per_device_batch=per_device_batch,
        cache_dir=cache_dir,
        max_num_inference_steps=20,
    )
    assert isinstance(engine, DiffusionEngine)
    engine.warm()
    samplers = engine.info.schedulers
    jobs = [
        ImageSpec(
            prompt=f"a red circle on a blue background {seed}",
            seed=seed,
            num_inference_steps=6 + seed,
            guidance_scale=1.0 + seed,
            scheduler=samplers[seed % len(samplers)],
        )
        for seed in range(JOBS)
    ]

    def batches(jobs: list[ImageSpec]) -> list[np.ndarray]:
        return [
            image
            for first in range(0, len(jobs), engine.capacity)
            for image in engine.start_batch(
                jobs[first : first + engine.capacity], engine.info.shapes[0]
            ).images()
        ]

    held = sum(
        shard.data.nbytes
        for array in jax.tree.leaves(engine._weights)
        for shard in array.addressable_shards
        if shard.device.id == 0
    )
    np.savez(out, forwards=batches(jobs), backwards=batches(jobs[::-1])[::-1], held=held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="shapes")
    parser.add_argument("--row", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        mesh, batch, cache_dir, out = options.row
        generate(options.model, mesh, int(batch), Path(cache_dir), Path(out))
        return
    rows = []
    print(f"{'mesh':<16}{'batch':>6}{'order':>11}{'largest':>9}{'share':>10}{'weights, MB':>13}")
    with tempfile.TemporaryDirectory() as folder:
        first: np.ndarray | None = None
        for number, (mesh, batch) in enumerate(CASES):
            out = Path(folder) / f"{number}.npz"
            row = [mesh, str(batch), folder, str(out)]
            subprocess.run(
                [sys.executable, "-m", "benchmarks.seeds", options.model, "--row", *row], check=True
            )
            with np.load(out) as saved:
                for order in ("forwards", "backwards"):
                    images = saved[order].astype(int)
                    first = images if first is None else first
                    apart = np.abs(images - first)
                    figures = (int(apart.max()), float((apart > 0).mean()), saved["held"] / 1e6)
                    rows.append((mesh, batch, order, *figures))
                    print("{:<16}{:>6}{:>11}{:>9}{:>10.1e}{:>13.1f}".format(*rows[-1]), flush=True)
    about = {"model": options.model, "largest": max(row[3] for row in rows), "rows": rows}
    print_json("seeds", about)


if __name__ == "__main__":
    main()
