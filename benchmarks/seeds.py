"""Measure whether a seed gives the same image on every batch size, slot and mesh.

`python -m benchmarks.seeds [model]` generates eight jobs of mixed steps, guidance and schedulers
with several batch sizes and meshes, in two orders, and compares the images with the first row's:
in whole batches (static), and in streams, in which images start and end beside others (continuous).
It also prints how many bytes of the weights each device holds. Each row has its own process. On a
CPU the devices are virtual.

It does not show accelerators, whose matmuls round in another way, or other jax versions.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.report import print_json
from imagefleet.worker.engine.contract.interface import Engine, ImageArray, ImageSpec, Shape, Stream
from imagefleet.worker.engine.loading.load_engine import load_engine

CASES = (
    ("data=8", 1, "static"),
    ("data=1", 1, "static"),
    ("data=1", 8, "static"),
    ("data=4", 1, "static"),
    ("data=4", 2, "static"),
    ("data=4,model=2", 2, "static"),
    ("data=2,model=4", 4, "static"),
    ("data=8", 1, "continuous"),
    ("data=1", 1, "continuous"),
    ("data=1", 8, "continuous"),
    ("data=4", 2, "continuous"),
    ("data=4,model=2", 1, "continuous"),
    ("data=4,model=2", 2, "continuous"),
)
"""(mesh, per-device batch, batching)"""
JOBS = 8


def in_batches(engine: Engine, shape: Shape, jobs: Sequence[ImageSpec]) -> list[ImageArray]:
    """Return the images of whole batches, in the order of the jobs."""
    return [
        image
        for first in range(0, len(jobs), engine.capacity)
        for image in engine.start_batch(jobs[first : first + engine.capacity], shape).images()
    ]


def in_streams(
    streams: Sequence[Stream], slots: int, shape: Shape, jobs: Sequence[ImageSpec]
) -> list[ImageArray]:
    """Return the images of streams in the order of the jobs, which take turns on the streams."""
    images = list[ImageArray]([np.empty(0, np.uint8)] * len(jobs))
    for number, stream in enumerate(streams):
        mine = slice(number, None, len(streams))
        images[mine] = _in_stream(stream, slots, shape, jobs[mine])
    return images


def _in_stream(
    stream: Stream, slots: int, shape: Shape, jobs: Sequence[ImageSpec]
) -> list[ImageArray]:
    """Run the jobs in order. Each takes the first slot that comes free, beside others."""
    waiting, running, finished = list(enumerate(jobs)), dict[int, int](), {}
    while waiting or running:
        for slot in set(range(slots)) - running.keys():
            if waiting:
                running[slot], spec = waiting.pop(0)
                stream.start(slot, spec, shape)
        for slot in stream.step():
            finished[running.pop(slot)] = stream.finish(slot)
    return [finished[number]().pixels for number in range(len(jobs))]


def generate(
    model: str, mesh: str, per_device_batch: int, batching: str, cache_dir: Path, out: Path
) -> None:
    """Generate and save the jobs in both orders, so that each one is in two slots."""
    import jax

    from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine

    engine = load_engine(
        model,
        mesh=mesh,
        per_device_batch=per_device_batch,
        cache_dir=cache_dir,
        max_num_inference_steps=20,
    )
    assert isinstance(engine, DiffusionEngine)
    if batching == "continuous":
        render = partial(in_streams, engine.open_streams(), per_device_batch)
    else:
        engine.warm()
        render = partial(in_batches, engine)
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
    shape = engine.info.shapes[0]
    held = sum(
        shard.data.nbytes
        for array in jax.tree.leaves(engine._weights)
        for shard in array.addressable_shards
        if shard.device.id == 0
    )
    np.savez(
        out, forwards=render(shape, jobs), backwards=render(shape, jobs[::-1])[::-1], held=held
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="shapes")
    parser.add_argument("--row", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        mesh, batch, batching, cache_dir, out = options.row
        generate(options.model, mesh, int(batch), batching, Path(cache_dir), Path(out))
        return
    rows = []
    print(
        f"{'mesh':<16}{'batch':>6}{'batching':>12}{'order':>11}{'largest':>9}{'share':>10}"
        f"{'weights, MB':>13}"
    )
    with tempfile.TemporaryDirectory() as folder:
        first: np.ndarray | None = None
        for number, (mesh, batch, batching) in enumerate(CASES):
            out = Path(folder) / f"{number}.npz"
            row = [mesh, str(batch), batching, folder, str(out)]
            subprocess.run(
                [sys.executable, "-m", "benchmarks.seeds", options.model, "--row", *row], check=True
            )
            with np.load(out) as saved:
                for order in ("forwards", "backwards"):
                    pixels = saved[order].astype(int)
                    first = pixels if first is None else first
                    apart = np.abs(pixels - first)
                    figures = (int(apart.max()), float((apart > 0).mean()), saved["held"] / 1e6)
                    rows.append((mesh, batch, batching, order, *figures))
                    line = "{:<16}{:>6}{:>12}{:>11}{:>9}{:>10.1e}{:>13.1f}"
                    print(line.format(*rows[-1]), flush=True)
    about = {"model": options.model, "largest": max(row[4] for row in rows), "rows": rows}
    print_json("seeds", about)


if __name__ == "__main__":
    main()
