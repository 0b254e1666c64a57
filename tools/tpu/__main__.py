"""Compile the engine's programs for TPU hosts that are not here, and print the estimates.

    PYTHONPATH=.libtpu .venv/bin/python -m tools.tpu [--full] [--hosts v5e-8] [--models sd14] …

The output is a table of programs, a table of images a second, and one line of JSON. The command
fails if the compiler refuses a program, unless it is too large and the worker knows that.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path

import jax

from imagefleet.worker.engine.compile.program_compiler import ShapeExecutables
from imagefleet.worker.engine.compile.stream_compiler import StreamExecutables
from imagefleet.worker.engine.placement.tpu_hosts import TPU_HOSTS
from tools.tpu.models import SHAPES, STEPS
from tools.tpu.rows import (
    Account,
    Row,
    account,
    fails,
    libtpu_version,
    lowerings,
    memory_need_of,
)

PROGRAMS = tuple(each.name for each in fields(ShapeExecutables) if each.default is MISSING)
"""All models have them. Those with a default are of some families only."""
STREAM_PROGRAMS = tuple(each.name for each in fields(StreamExecutables) if each.default is MISSING)
DEFAULT_STEPS = (20, 50)
DEFAULT_ROWS = (
    *(Row(model="sd14", host="v5e-8", program=program) for program in PROGRAMS),
    Row(model="sd14", host="v2-8", program="step"),
)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows that the options ask for."""
    if not options.full and not options.hosts and not options.models:
        for row in DEFAULT_ROWS:
            yield replace(
                row, loras=options.loras, prompt_chunks=options.prompt_chunks, quick=options.quick
            )
        return
    for model in options.models or SHAPES:
        for host in options.hosts or TPU_HOSTS:
            for devices_per_copy in options.model_axis:
                for images in options.images:
                    group = Row(
                        model=model,
                        host=host,
                        program="",
                        per_device_batch=images,
                        devices_per_copy=devices_per_copy,
                        streams=options.streams,
                        loras=options.loras,
                        prompt_chunks=options.prompt_chunks,
                        int8_weights=options.int8_weights,
                        host_text_encoder=options.host_text_encoder,
                        few_blocks=options.few_blocks,
                        quick=options.quick,
                    )
                    for program in options.programs or lowerings(group):
                        yield replace(group, program=program)


def line(row: Row, result: Account) -> str:
    """Return one line of the table of programs."""
    generation, need = TPU_HOSTS[row.host].generation, memory_need_of(row)
    start = (
        f"{row.model:<14} {row.host:<6} {row.devices_per_copy:>5} {row.per_device_batch:>6} "
        f"{row.program:<14} {result.outcome:<10} {result.seconds:>6.0f} {need.total / 1e9:>8.2f}"
    )
    if (estimate := result.estimate) is None:
        return f"{start}  {result.message[:150]}"
    # The weights of all networks stay on the device while one of the programs runs.
    held = need.weights + estimate.temporary_bytes
    memory = (
        f"{start} {held / 1e9:>11.2f} {need.total / held - 1:>+6.0%} "
        f"{estimate.argument_bytes / 1e6:>8,.0f} {estimate.temporary_bytes / 1e6:>8,.0f} "
        f"{estimate.total_bytes / generation.memory_bytes:>6.0%}"
    )
    if row.quick:
        return memory
    return (
        f"{memory} {estimate.flops / 1e12:>7.2f} "
        f"{estimate.cycles / 1e6:>8.1f} {estimate.kernel_cycles / 1e6:>8.1f} "
        f"{estimate.milliseconds(generation):>8.1f} {estimate.share_of_peak(generation):>6.0%} "
        f"{estimate.share_at_floor(generation):>6.0%} "
        f"{estimate.collectives:>11} {estimate.awaited_bytes / 1e6:>10,.0f} "
        f"{estimate.hidden_bytes / 1e6:>9,.0f} {estimate.uncounted_kernels:>9}"
    )


HEADER = (
    f"{'model':<14} {'host':<6} {'model':>5} {'images':>6} {'program':<14} {'outcome':<10} "
    f"{'took s':>6} {'check GB':>8} {'compiler GB':>11} {'differ':>6} "
    f"{'args MB':>8} {'temps MB':>8} {'memory':>6} {'TFLOP':>7} {'Mcycles':>8} {'kernels':>8} "
    f"{'est. ms':>8} {'peak':>6} {'floor':>6} {'collectives':>11} {'awaited MB':>10} "
    f"{'hidden MB':>9} {'uncounted':>9}"
)


def image_rates(results: dict[Row, Account]) -> Iterator[str]:
    """Yield for each batch with all its programs the images a second, on a host."""
    groups = {row.group: row for row in results}
    for group, row in groups.items():
        milliseconds = {
            other.program: result.estimate.milliseconds(TPU_HOSTS[other.host].generation)
            for other, result in results.items()
            if other.group == group and result.estimate is not None and not row.quick
        }
        # Flow models are fast without guidance.
        without = milliseconds.get("unguided_step") if row.model in STEPS else None
        step = milliseconds.get("step") if without is None else without
        if step is None or not {"begin", "decode"} <= milliseconds.keys():
            continue
        copies = TPU_HOSTS[row.host].devices // row.devices_per_copy
        # Texts of flow models are encoded one at a time.
        steps_of = STEPS.get(row.model, DEFAULT_STEPS)
        once = milliseconds["begin"] + milliseconds["decode"]
        once += row.per_device_batch * milliseconds.get("encode_text", 0.0)
        rates = [
            f"{1e3 * copies * row.per_device_batch / (once + steps * step):>8.2f} at {steps} steps"
            for steps in steps_of
        ]
        yield (
            f"{row.model:<14} {row.host:<6} {row.devices_per_copy:>5} {row.per_device_batch:>6} "
            + "".join(rates)
        )


def _names(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.tpu", description=__doc__)
    parser.add_argument("--full", action="store_true", help="every model on every host: hours")
    parser.add_argument(
        "--quick", action="store_true", help="optimize little: what compiles and fits, no times"
    )
    parser.add_argument("--models", type=_names)
    parser.add_argument("--hosts", type=_names)
    parser.add_argument("--programs", type=_names)
    parser.add_argument("--streams", action="store_true", help="those of continuous batching")
    parser.add_argument("--images", type=_numbers, default=[1], help="images a device: 1,4")
    parser.add_argument("--model-axis", type=_numbers, default=[1], help="devices a copy: 1,2")
    parser.add_argument("--loras", type=int, default=0, help="of jobs, for the UNet's attention")
    parser.add_argument("--prompt-chunks", type=int, default=0, help="of prompts with weights")
    parser.add_argument("--int8-weights", action="store_true", help="of flow models")
    parser.add_argument("--host-text-encoder", action="store_true", help="of flow models")
    parser.add_argument(
        "--few-blocks",
        action="store_true",
        help="compute a flow model's programs from two with few blocks of its transformer",
    )
    parser.add_argument("--cache", type=Path, default=Path("out/tpu"))
    options = parser.parse_args(arguments)
    # With libtpu here, JAX would look for a TPU.
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
    print(HEADER)
    results: dict[Row, Account] = {}
    for row in rows(options):
        results[row] = account(row, options.cache)
        print(line(row, results[row]), flush=True)
    for rate in image_rates(results):
        print(rate)
    print(
        json.dumps(
            {
                "libtpu": libtpu_version(),
                "rows": [
                    asdict(row) | asdict(result) | {"need": asdict(memory_need_of(row))}
                    for row, result in results.items()
                ],
            }
        )
    )
    return int(any(fails(row, result) for row, result in results.items()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
