"""Is a job's picture the same wherever it is painted? Eight jobs of mixed steps and guidance, with
every sampler there is, through batch sizes, slots, numbers of devices and meshes, against the first
row; and what of the weights each device holds.

`python benchmarks/seeds.py [model]`. A process for each row; on a CPU the devices are virtual.

What it does not show: accelerators, whose matmuls round in another way; other jax versions.
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


def paint(model: str, mesh: str, per_device_batch: int, cache_dir: Path, out: Path) -> None:
    """In a process of its own: the jobs in order, and backwards, each in another slot."""
    import jax

    from imagefleet.worker.engine.diffusion_engine import DiffusionEngine
    from imagefleet.worker.engine.interface import ImageSpec
    from imagefleet.worker.engine.load import load_engine

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
            picture
            for first in range(0, len(jobs), engine.capacity)
            for picture in engine.render(
                jobs[first : first + engine.capacity], engine.info.shapes[0]
            ).pictures()
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
    given = parser.parse_args()
    if given.row:
        mesh, batch, cache_dir, out = given.row
        paint(given.model, mesh, int(batch), Path(cache_dir), Path(out))
        return
    rows = []
    print(f"{'mesh':<16}{'batch':>6}{'order':>11}{'largest':>9}{'share':>10}{'weights, MB':>13}")
    with tempfile.TemporaryDirectory() as folder:
        first: np.ndarray | None = None
        for number, (mesh, batch) in enumerate(CASES):
            out = Path(folder) / f"{number}.npz"
            row = [mesh, str(batch), folder, str(out)]
            subprocess.run([sys.executable, __file__, given.model, "--row", *row], check=True)
            with np.load(out) as painted:
                for order in ("forwards", "backwards"):
                    pictures = painted[order].astype(int)
                    first = pictures if first is None else first
                    apart = np.abs(pictures - first)
                    figures = (int(apart.max()), float((apart > 0).mean()), painted["held"] / 1e6)
                    rows.append((mesh, batch, order, *figures))
                    print("{:<16}{:>6}{:>11}{:>9}{:>10.1e}{:>13.1f}".format(*rows[-1]), flush=True)
    about = {"model": given.model, "largest": max(row[3] for row in rows), "rows": rows}
    print_json("seeds", about)


if __name__ == "__main__":
    main()
