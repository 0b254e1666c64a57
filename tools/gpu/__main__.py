"""Compile the engine's programs for an NVIDIA GPU that is not here, and print what they need.

    PYTHONPATH=.cuda .venv/bin/python -m tools.gpu [--gpus h100,a100] [--models sd14,sdxl] …

The columns are the memory by the worker's own check and by the compiler, and how many of cuDNN's
kernels the program calls. There are no times: unlike that for TPUs, this compiler tells none. The
command fails if the compiler refuses a program.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from imagefleet.worker.engine.compile.program_compiler import ShapeExecutables
from imagefleet.worker.engine.loading.memory_need import memory_need
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.memory_check import Workload
from tools.gpu.devices import GPUS, Gpu, placement_of
from tools.tpu.models import SHAPES, model_of
from tools.tpu.programs import BFLOAT16, lower_programs

PROGRAMS = tuple(ShapeExecutables.__dataclass_fields__)
HEADER = (
    f"{'model':<5} {'gpu':<5} {'images':>6} {'program':<14} {'outcome':<9} {'took s':>6} "
    f"{'check GB':>8} {'compiler GB':>11} {'differ':>6} {'args MB':>8} {'temps MB':>8} "
    f"{'attention':>9} {'convolutions':>12}"
)


def compile_programs(
    model: str, gpu: Gpu, images: int, programs: Sequence[str]
) -> list[dict[str, object]]:
    """Compile programs of a model, and return what the compiler says of each."""
    source, shape = model_of(model), SHAPES[model]
    placement = placement_of(gpu)
    workload = Workload.of(placement, BFLOAT16, images, ModelOptions())
    need = memory_need(source, source.networks(), (shape,), workload)
    lowerings = lower_programs(source, shape, placement, per_device_batch=images)
    results: list[dict[str, object]] = []
    for program in programs:
        started = time.monotonic()
        result: dict[str, object] = {"program": program, "check_bytes": need.total}
        try:
            compiled = lowerings[program]().compile()
        except Exception as error:  # the compiler and JAX raise errors of many types
            result["refused"] = str(error).strip().splitlines()[0]
        else:
            memory: Any = compiled.memory_analysis()
            calls = re.findall(r'custom_call_target="__cudnn\$(\w+)"', compiled.as_text() or "")
            result |= {
                "held_bytes": need.weights + memory.temp_size_in_bytes,
                "argument_bytes": memory.argument_size_in_bytes,
                "temporary_bytes": memory.temp_size_in_bytes,
                "attention_calls": sum(call.startswith("fmha") for call in calls),
                "convolution_calls": sum(call.startswith("conv") for call in calls),
            }
        results.append(result | {"seconds": time.monotonic() - started})
    return results


def line(model: str, gpu: str, images: int, result: dict[str, object]) -> str:
    """Return one line of the table."""
    refused = result.get("refused")
    start = (
        f"{model:<5} {gpu:<5} {images:>6} {result['program']:<14} "
        f"{'refused' if refused else 'compiles':<9} {result['seconds']:>6.0f} "
    )
    if refused:
        return f"{start} {refused}"
    check, held = float(str(result["check_bytes"])), float(str(result["held_bytes"]))
    return (
        f"{start}{check / 1e9:>8.2f} {held / 1e9:>11.2f} {check / held - 1:>+6.0%} "
        f"{float(str(result['argument_bytes'])) / 1e6:>8,.0f} "
        f"{float(str(result['temporary_bytes'])) / 1e6:>8,.0f} "
        f"{result['attention_calls']:>9} {result['convolution_calls']:>12}"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu", description=__doc__)
    parser.add_argument("--models", default="sd14")
    parser.add_argument("--gpus", default="h100", help=", ".join(GPUS))
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--images", default="1", help="images of a batch: 1,8")
    options = parser.parse_args(arguments)
    print(HEADER)
    rows = []
    for model in options.models.split(","):
        for gpu in options.gpus.split(","):
            for images in map(int, options.images.split(",")):
                for result in compile_programs(
                    model, GPUS[gpu], images, options.programs.split(",")
                ):
                    print(line(model, gpu, images, result), flush=True)
                    rows.append({"model": model, "gpu": gpu, "images": images} | result)
    libraries = {name: version(name) for name in ("jax-cuda12-plugin", "nvidia-cudnn-cu12")}
    print(json.dumps({"libraries": libraries, "rows": rows}))
    return int(any("refused" in row for row in rows))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
