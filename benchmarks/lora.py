"""Measure what LoRA of jobs cost in a step: `python -m benchmarks.lora FILE [--model shapes]`.

It holds the file once and several times, under other names, and compares a guided step of a full
batch with that of the model without. The steps are interleaved, so that a busy machine slows all
alike. Every job uses all files that are held; what it uses does not change the work.

It does not show accelerators (docs/tpu.md), the text encoders, which run once a job, or the memory.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import jax

from benchmarks.report import print_json
from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine

_STEPS_AT_ONCE = 4


def make_step(file: Path, held: int, options: argparse.Namespace) -> Callable[[], float]:
    """Return a function that does some steps of a batch and returns the seconds of each."""
    names = [f"lora{number}" for number in range(held)]
    loras = tuple(LoraOption(name=name, path=str(file)) for name in names)
    engine = load_engine(
        options.model,
        devices=options.devices,
        per_device_batch=options.per_device_batch,
        cache_dir=options.cache,
        options=ModelOptions(job_loras=loras),
    )
    assert isinstance(engine, DiffusionEngine)
    engine.warm()
    shape = engine.info.shapes[0]
    spec = ImageSpec(
        prompt="a red circle",
        num_inference_steps=_STEPS_AT_ONCE + 1,
        guidance_scale=3.0,
        loras=tuple((name, 0.5) for name in names),
    )

    def seconds_of_a_step() -> float:
        batch = engine.start_batch([spec] * engine.capacity, shape)
        steps = iter(batch)
        next(steps)  # it waits for the text encoders, too
        started = time.perf_counter()
        done = sum(1 for _ in steps)
        seconds = (time.perf_counter() - started) / done
        batch.images()  # the decoder must not run beside the next step
        return seconds

    return seconds_of_a_step


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="a LoRA file of the model")
    parser.add_argument("--model", default="shapes")
    parser.add_argument("--held", type=int, nargs="+", default=[1, 4], help="files that are held")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--per-device-batch", type=int, default=8)
    parser.add_argument("--cache", type=Path, help="folder for compiled programs")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory() as folder:
        options.cache = options.cache or Path(folder)
        steps = {held: make_step(options.file, held, options) for held in (0, *options.held)}
        seconds: dict[int, list[float]] = {held: [] for held in steps}
        for _ in range(options.rounds):
            for held, step in steps.items():
                seconds[held].append(step())
    print(f"{'LoRA held':<12}{'ms a step':>12}{'to none':>10}")
    ratios = {}
    for held, measured in seconds.items():
        # Each round is compared with itself: the load of the machine differs between rounds.
        each = [mine / none for mine, none in zip(measured, seconds[0], strict=True)]
        ratios[held] = median(each)
        print(f"{held:<12}{1000 * median(measured):>12.1f}{ratios[held]:>10.3f}")
    print_json(
        "lora",
        {
            "model": options.model,
            "file": options.file.name,
            "batch": options.devices * options.per_device_batch,
            "jax": jax.__version__,
            "step_ratio": {str(held): round(ratio, 3) for held, ratio in ratios.items()},
        },
    )


if __name__ == "__main__":
    main()
