"""Compile a model's programs before a worker needs them, without weights and without its devices.

Input: the configs of a checkpoint, and a host. Output: executables in the stores, under the
fingerprints that a worker with the same settings computes on such a host.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from imagefleet.worker.engine.checkpoint.job_loras import JobLoraFactors
from imagefleet.worker.engine.checkpoint.lora_keys import LoraNames
from imagefleet.worker.engine.checkpoint.weights import Params, weight_entries
from imagefleet.worker.engine.compile.executable_cache import DeviceCopy, ExecutableCache
from imagefleet.worker.engine.compile.private_folder import make_private
from imagefleet.worker.engine.compile.program_compiler import ProgramCompiler
from imagefleet.worker.engine.compile.stream_compiler import StreamCompiler
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.family_protocol import FamilyModel
from imagefleet.worker.engine.loading.abstract_weights import (
    abstract_factors,
    abstract_weights,
    trained_shapes,
)
from imagefleet.worker.engine.loading.find_checkpoint import find_checkpoint
from imagefleet.worker.engine.loading.load_engine import SharedStores, executable_cache_of
from imagefleet.worker.engine.loading.memory_need import need_without_weights
from imagefleet.worker.engine.loading.read_model import ModelSetup, choose_dtype
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.mesh_spec import MeshSpec
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.memory_check import (
    Workload,
    check_available,
    memory_errors,
)
from imagefleet.worker.engine.placement.mesh import Placement, start_backend
from imagefleet.worker.engine.placement.tpu_hosts import TpuHost
from imagefleet.worker.engine.placement.tpu_topology import placement_of
from imagefleet.worker.engine.sampling.empty_batch import EmptyBatch


@dataclass(frozen=True)
class AbstractModel:
    """It has the programs of a model on a mesh, with abstract weights. Devices may be absent."""

    compiler: ProgramCompiler | StreamCompiler
    rgb_factors: jax.ShapeDtypeStruct

    @classmethod
    def of(
        cls,
        source: FamilyModel,
        placement: Placement,
        executable_cache: ExecutableCache,
        *,
        token_lengths: tuple[int, ...],
        per_device_batch: int,
        dtype: np.dtype[Any],
        max_steps: int,
        options: ModelOptions | None = None,
    ) -> "AbstractModel":
        """Return the programs that a worker would compile.

        Args:
            source: The model.
            placement: The mesh.
            executable_cache: Where executables are stored.
            token_lengths: Those of the tokenizer.
            per_device_batch: Images that one copy of the weights denoises at a time.
            dtype: That of the weights.
            max_steps: The most steps that a job may ask for.
            options: Of the worker. If it runs streams, the programs are those of the first; the
                others load the same. `source` has the weights that they ask for already.
        """
        options = options or ModelOptions()
        if options.streams:
            placement = placement.copies()[0]
        networks = source.networks()
        parameters = abstract_weights(networks, placement, dtype)
        _add_factors(options.job_loras, source.lora_names, networks, parameters, placement, dtype)
        programs, weights = source.assemble(networks, parameters, dtype)
        if options.host_text_encoder:
            weights = weights.without_text_encoder()
        slots = placement.data * per_device_batch
        batch = EmptyBatch.of(
            programs,
            slots,
            token_lengths,
            max_steps,
            len(options.job_loras),
            options.prompt_chunks,
        )
        rgb_factors = jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            (programs.latent_channels + 1, 3), np.float32, sharding=placement.replicated
        )
        if not options.streams:
            whole = ProgramCompiler(programs, weights, batch, placement, executable_cache)
            return cls(whole, rgb_factors)
        copy = DeviceCopy(devices=placement.device_list, first=placement.device_list)
        one = replace(batch, slots=1)
        return cls(
            StreamCompiler(programs, weights, one, batch, placement, copy, executable_cache),
            rgb_factors,
        )


def _add_factors(
    job_loras: Sequence[LoraOption],
    names: LoraNames,
    networks: Mapping[str, nnx.Module],
    parameters: Mapping[str, Params],
    placement: Placement,
    dtype: np.dtype[Any],
) -> None:
    """Put abstract factors of LoRA beside the abstract weights. Their files are read."""
    entries = {name: weight_entries(networks[name]) for name in networks if name in names.networks}
    factors = JobLoraFactors(job_loras, trained_shapes(networks, names), names)
    place = partial(abstract_factors, placement=placement, dtype=dtype)
    for name, listed in entries.items():
        factors.add_to(name, parameters[name], listed, place)


@dataclass(frozen=True)
class AheadCompilation:
    """It compiles ahead the programs of a model for a host, in all declared shapes."""

    model: AbstractModel
    shapes: Sequence[Shape]

    @property
    def environment(self) -> Sequence[str]:
        """Return what of the host determines its executables, as in `device=TPU v5 lite of 8`."""
        return self.model.compiler.executable_cache.environment

    def __iter__(self) -> Iterator[tuple[str, bool]]:
        """Put each executable into the stores that lack it.

        Yields:
            The name of a program, and whether it was compiled. Otherwise a store had it.

        Raises:
            ImagefleetError: a store cannot be used.
            TooLittleMemory: a program needs more memory than a device has.
        """
        with memory_errors():
            for shape in self.shapes:
                yield from self.model.compiler.compile_ahead(shape, self.model.rgb_factors)


def compile_ahead(
    model: str,
    topology: str | None,
    *,
    shapes: Sequence[Shape] | None,
    per_device_batch: int,
    mesh: MeshSpec,
    dtype: str | None,
    cache_dir: Path,
    shared: SharedStores,
    max_num_inference_steps: int,
    options: ModelOptions,
) -> AheadCompilation:
    """Prepare to compile a model. Iterate over the result to do it.

    Args:
        model: As in `load_engine`, and all further arguments. Only configs, tokenizers and the
            files of `options` are read.
        topology: The TPU host to compile for. None: this machine and its own devices.
        mesh: How many devices the worker will use, and how.

    Raises:
        CheckpointError: the model cannot be found, read or run.
        ConfigurationError: the host or the model does not support a setting, libtpu is missing, or
            the model does not fit the host.
    """
    shared.require_secret()
    folder = find_checkpoint(model, with_weights=False)
    if topology is None:
        start_backend(mesh.devices)
        placement = Placement.of(mesh.devices, mesh.model)
    else:
        placement = placement_of(topology, mesh.devices, mesh.model)
    setup = ModelSetup.read(folder, shapes or (), options)
    source, numpy_dtype = setup.model, choose_dtype(dtype, placement.platform)
    if topology is not None:
        _require_fit(setup, placement, numpy_dtype, per_device_batch, options, topology)
    make_private(cache_dir)
    abstract_model = AbstractModel.of(
        source,
        placement,
        executable_cache_of(folder, placement, cache_dir, shared, options.control_nets),
        token_lengths=setup.tokenizer.lengths,
        per_device_batch=per_device_batch,
        dtype=numpy_dtype,
        max_steps=setup.limit_steps(max_num_inference_steps),
        options=options,
    )
    return AheadCompilation(abstract_model, setup.shapes)


def _require_fit(
    setup: ModelSetup,
    placement: Placement,
    dtype: np.dtype[Any],
    per_device_batch: int,
    options: ModelOptions,
    topology: str,
) -> None:
    """Require that the model fits a host that is not here.

    Raises:
        TooLittleMemory: it does not.
    """
    workload = Workload.of(placement, dtype, per_device_batch, options)
    need = need_without_weights(setup, setup.model.networks(), workload, options)
    check_available(need.total, TpuHost.named(topology).generation.memory_bytes, topology)
