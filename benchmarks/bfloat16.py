"""Measure how far images in bfloat16 are from those in float32, by the formulas of TPUs and others.

`python -m benchmarks.bfloat16 [model]` generates the same images three times on the CPU: in
float32; in bfloat16; and in bfloat16 with the formulas that are for TPUs (norms that read once,
GELU by tanh). It prints the mean and the 99th percentile of the difference
from float32, in levels of 255.

It does not show the TPU's own rounding: no TPU takes part, nor do the kernels.
"""

import argparse
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
from jax.sharding import AbstractDevice

from benchmarks.report import print_json
from benchmarks.seeds import in_batches
from imagefleet.worker.engine.contract.interface import ImageArray, ImageSpec
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.placement import mesh

IMAGES = 32
BATCH = 8


def images(model: str, dtype: str, cache: Path) -> list[ImageArray]:
    """Generate the images."""
    engine = load_engine(model, dtype=dtype, per_device_batch=BATCH, devices=1, cache_dir=cache)
    engine.warm()
    info = engine.info
    specs = [
        ImageSpec(
            prompt=f"a {('red', 'green', 'blue', 'yellow')[seed % 4]} circle",
            seed=seed,
            num_inference_steps=info.default_num_inference_steps,
            guidance_scale=info.default_guidance_scale,
            scheduler=info.default_scheduler,
        )
        for seed in range(IMAGES)
    ]
    return in_batches(engine, info.shapes[0], specs)


def difference(exact: list[ImageArray], half: list[ImageArray]) -> dict[str, float]:
    """Return the mean and the 99th percentile of the difference, in levels."""
    levels = np.abs(np.stack(half).astype(int) - np.stack(exact).astype(int))
    return {"mean": round(float(levels.mean()), 4), "p99": float(np.percentile(levels, 99))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="shapes")
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as folder:
        # Each folder keeps the executables of one kind of program.
        as_on_cpu, as_on_tpu = (Path(folder) / name for name in ("cpu", "tpu"))
        exact = images(model, "float32", as_on_cpu)
        results = {"formulas of CPUs": difference(exact, images(model, "bfloat16", as_on_cpu))}
        mesh.target_device = lambda: cast(AbstractDevice, SimpleNamespace(platform="tpu"))
        results["formulas of TPUs"] = difference(exact, images(model, "bfloat16", as_on_tpu))
        for name, levels in results.items():
            print(f"bfloat16, {name}: {levels['mean']} of 255 levels on average")
            print(f"  99 % of the values within {levels['p99']}")
        print_json("bfloat16", {"model": model, "images": IMAGES, "levels": results})


if __name__ == "__main__":
    main()
