"""The command `imagefleet-worker compile` compiles a model's programs before a worker needs them.

For a TPU host it needs neither the host nor the weights, only its compiler, libtpu.
"""

import time
from typing import TYPE_CHECKING, Any, Final

import click

from imagefleet.shared.text.printable import printable
from imagefleet.worker.commands.setting_flags import exit_on_error, setting_flags
from imagefleet.worker.engine.options.control_net_options import ControlNetOption
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.mesh_spec import MeshSpec
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.options.textual_inversion_options import TextualInversionOption
from imagefleet.worker.engine.placement.tpu_hosts import TPU_HOSTS
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.stores import open_shared_stores

if TYPE_CHECKING:
    from imagefleet.worker.engine.loading.compile_ahead import AheadCompilation

_MAX_LINE: Final = 1_000


@click.command("compile")
@setting_flags(
    (
        "model",
        "shapes",
        "mesh",
        "devices",
        "per_device_batch",
        "batching",
        "dtype",
        "int8_weights",
        "host_text_encoder",
        "max_num_inference_steps",
        "safety_checker",
        "text_encoder_3",
        "job_lora",
        "controlnet",
        "textual_inversion",
        "prompt_chunks",
        "cache_dir",
        "programs_url",
        "programs_secret",
    )
)
@click.option(
    "--topology",
    metavar="HOST",
    help=f"The TPU host to compile for: {', '.join(TPU_HOSTS)}. Default: this machine.",
)
def compile_command(topology: str | None, **flags: Any) -> None:
    """Compile a model for workers that start later, so that they need not.

    The executables are put into `cache_dir` and `programs_url`. A worker there takes them if all
    these settings, the versions and its devices are equal; docs/tpu.md says more. Weights are not
    needed, and with --topology neither is a TPU, only its compiler: install the extra `tpu`.

    \b
    Exit codes:
    0   success
    75  temporary failure: the storage or the Hub cannot be reached
    78  configuration error: a setting, the topology, the checkpoint or the storage is wrong
    """
    with exit_on_error(flags):
        settings = WorkerSettings.load(**flags)
        _compile(_prepare(settings, topology))


def _prepare(settings: WorkerSettings, topology: str | None) -> "AheadCompilation":
    from imagefleet.worker.engine.loading.compile_ahead import compile_ahead

    shared = open_shared_stores(settings)
    compilation = compile_ahead(
        settings.model,
        topology,
        shapes=settings.declared_shapes(),
        per_device_batch=settings.per_device_batch,
        mesh=MeshSpec.parse(settings.mesh, settings.devices),
        dtype=settings.dtype,
        cache_dir=settings.cache_dir,
        shared=shared,
        max_num_inference_steps=settings.max_num_inference_steps,
        options=ModelOptions(
            safety_checker=settings.safety_checker,
            text_encoder_3=settings.text_encoder_3,
            job_loras=LoraOption.parse_job_loras(settings.job_lora),
            control_nets=ControlNetOption.parse_all(settings.controlnet),
            textual_inversions=TextualInversionOption.parse_all(settings.textual_inversion),
            prompt_chunks=settings.prompt_chunks,
            int8_weights=settings.int8_weights,
            host_text_encoder=settings.host_text_encoder,
            streams=settings.batching == "continuous",
        ),
    )
    if shared.executables is not None:
        shared.executables.check()  # compiling takes minutes
    return compilation


def _compile(compilation: "AheadCompilation") -> None:
    for line in compilation.environment:
        click.echo(printable(line, _MAX_LINE))
    started = time.monotonic()
    for program, is_new in compilation:
        seconds = time.monotonic() - started
        click.echo(f"{program}: {f'compiled in {seconds:.1f} s' if is_new else 'there already'}")
        started = time.monotonic()
