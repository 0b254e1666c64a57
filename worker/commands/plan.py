"""The command `imagefleet-worker plan` prints what a TPU host could do with a model.

It needs neither the host nor the weights.
"""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from imagefleet.shared.text.printable import counted, printable
from imagefleet.worker.commands.setting_flags import exit_on_error, setting_flags
from imagefleet.worker.engine.options.control_net_options import ControlNetOption
from imagefleet.worker.engine.options.mesh_spec import MAX_PER_DEVICE_BATCH
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.tpu_hosts import TPU_HOSTS, TpuHost
from imagefleet.worker.settings.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from imagefleet.worker.engine.loading.host_plan import BatchPlan, HostPlan

_GIB: Final = 2**30
_MAX_LINE: Final = 1_000


@click.command()
@setting_flags(
    (
        *("model", "shapes", "batching", "dtype", "int8_weights", "host_text_encoder"),
        *("safety_checker", "text_encoder_3", "prompt_chunks", "controlnet"),
    )
)
@click.option(
    "--topology",
    required=True,
    metavar="HOST",
    help=f"The TPU host to plan for: {', '.join(TPU_HOSTS)}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(topology: str, as_json: bool, **flags: Any) -> None:
    """Print which meshes and batches of a model fit a TPU host, and how fast it may be.

    Neither a TPU nor weights are needed: only the configs of the model are read, and downloaded if
    it is a Hub id. Memory is computed as by the worker before it loads a model. Times are
    estimates in bfloat16, and only for whole copies: of Stable Diffusion, FLUX.2 klein and Z-Image
    on v5e, of FLUX.1, FLUX.2 klein and Z-Image on v6e. docs/tpu.md explains both.

    \b
    Exit codes:
    0   success
    75  temporary failure: the Hub cannot be reached
    78  configuration error: a setting, the topology or the checkpoint is wrong
    """
    with exit_on_error(flags):
        settings = WorkerSettings.load(**flags)
        planned = _plan(settings, TpuHost.named(topology))
    if as_json:
        click.echo(json.dumps(_document(settings.model, planned)))
        return
    click.echo(printable(_title(settings.model, planned), _MAX_LINE))
    for line in (*_table(planned), "", *_notes(planned)):
        click.echo(line)


def _plan(settings: WorkerSettings, host: TpuHost) -> "HostPlan":
    from imagefleet.worker.engine.loading.find_checkpoint import find_checkpoint
    from imagefleet.worker.engine.loading.host_plan import plan_host

    return plan_host(
        find_checkpoint(settings.model, with_weights=False),
        host,
        shapes=settings.declared_shapes() or (),
        dtype=settings.dtype,
        options=ModelOptions(
            safety_checker=settings.safety_checker,
            text_encoder_3=settings.text_encoder_3,
            prompt_chunks=settings.prompt_chunks,
            control_nets=ControlNetOption.parse_all(settings.controlnet),
            int8_weights=settings.int8_weights,
            host_text_encoder=settings.host_text_encoder,
            streams=settings.batching == "continuous",
        ),
        max_per_device_batch=MAX_PER_DEVICE_BATCH,
    )


def _title(model: str, planned: "HostPlan") -> str:
    host, shapes = planned.host, ", ".join(map(str, planned.shapes))
    memory = host.generation.memory_bytes / _GIB
    return (
        f"{model} at {shapes} in {planned.dtype} on {host.name}: "
        f"{counted(host.devices, 'device')}, "
        f"each with {memory:.2f} GiB; batching={_batching(planned)}"
    )


def _batching(planned: "HostPlan") -> str:
    return "continuous" if planned.streams else "static"


def _table(planned: "HostPlan") -> Iterator[str]:
    yield (
        f"{'mesh':<15} {'per_device_batch':>16} {'images':>6} {'weights GiB':>11} "
        f"{'workspace GiB':>13} {'of memory':>9} {'fits':>4}"
        + "".join(f"  {f'{shape} ms/step':>17}" for shape in planned.shapes)
    )
    for batch in planned.batches:
        share = batch.need.total / planned.host.generation.memory_bytes
        yield (
            f"{batch.mesh:<15} {batch.per_device_batch:>16} {batch.images:>6} "
            f"{_rounded(batch.need.weights / _GIB):>11} "
            f"{_rounded(batch.need.workspace / _GIB):>13} "
            f"{share:>9.0%} {'yes' if batch.fits else 'no':>4}"
            + "".join(
                f"  {_milliseconds(batch.step_seconds[shape]):>17}" for shape in planned.shapes
            )
        )


def _notes(planned: "HostPlan") -> Sequence[str]:
    rates = (
        f"{shape}: about {_rounded(rate)} images a second on the host with "
        f"{counted(planned.steps, 'step')}, one image a device at a time"
        for shape, rate in planned.images_per_second.items()
        if rate is not None
    )
    hosts = {batch.need.host for batch in planned.batches if batch.need.host}
    return (
        *rates,
        *(f"The text encoder takes {_rounded(each / _GIB)} GiB of the host." for each in hosts),
        "",
        "Memory is that of the worker's memory check. Times are estimates that no TPU has",
        "confirmed: they follow those of the TPU compiler for whole copies in bfloat16, of Stable",
        "Diffusion and FLUX.2 klein on v5e, and of FLUX.2 klein and FLUX.1 on v6e.",
        "A line (-) stands where nothing like it was compiled:",
        "if model is above 1, on other TPUs, in float32, and for smaller or larger steps.",
        "`make tpu` in the source compiles programs and prints their times (docs/tpu.md).",
    )


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else _rounded(1e3 * seconds)


def _rounded(number: float) -> str:
    """Return a number with three digits that say something."""
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"


def _document(model: str, planned: "HostPlan") -> dict[str, Any]:
    generation = planned.host.generation
    return {
        "model": model,
        "topology": planned.host.name,
        "devices": planned.host.devices,
        "device_memory_bytes": generation.memory_bytes,
        "device_peak_flops": generation.flops,
        "dtype": str(planned.dtype),
        "batching": _batching(planned),
        "shapes": [str(shape) for shape in planned.shapes],
        "num_inference_steps": planned.steps,
        "estimated_images_per_second": {
            str(shape): rate for shape, rate in planned.images_per_second.items()
        },
        "batches": [_batch_document(batch) for batch in planned.batches],
    }


def _batch_document(batch: "BatchPlan") -> dict[str, Any]:
    return {
        "mesh": batch.mesh,
        "data": batch.data,
        "model": batch.model,
        "per_device_batch": batch.per_device_batch,
        "images": batch.images,
        "weight_bytes": batch.need.weights,
        "workspace_bytes": batch.need.workspace,
        "needed_bytes": batch.need.total,
        "host_bytes": batch.need.host,
        "fits": batch.fits,
        "estimated_step_seconds": {
            str(shape): seconds for shape, seconds in batch.step_seconds.items()
        },
    }
