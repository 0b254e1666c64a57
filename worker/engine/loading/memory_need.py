"""Estimate the memory that a model and a batch need on a device.

Input: a model, its networks without weights, shapes, and what the device is used for. Output:
bytes. It reads no weights and asks no device, so that it also serves hosts that are not here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
from flax import nnx

from imagefleet.worker.engine.checkpoint.job_loras import JobLoraFactors
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.family_protocol import FamilyModel
from imagefleet.worker.engine.loading.abstract_weights import held_dtype, trained_shapes
from imagefleet.worker.engine.loading.read_model import ModelSetup
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.memory_check import MemoryNeed, Workload
from imagefleet.worker.engine.placement.mesh import split_axis


def memory_need(
    model: FamilyModel,
    networks: Mapping[str, nnx.Module],
    shapes: Sequence[Shape],
    workload: Workload,
    job_factors: JobLoraFactors | None = None,
) -> MemoryNeed:
    """Estimate the bytes that a device needs.

    Args:
        model: To be loaded.
        networks: Its own, without weights.
        shapes: The declared shapes. Without one, only the weights count.
        workload: Of the device.
        job_factors: LoRA that jobs may use. None: there are none.
    """
    workspaces = [model.workspace_bytes(networks, shape, workload) for shape in shapes]
    on_host = model.text_networks if workload.host_text_encoder else ()
    whole = replace(workload, model=1)
    kept = workload.text_cache_bytes if model.text_networks else 0
    need = MemoryNeed(
        weights=sum(
            _weight_bytes(network, workload)
            for name, network in networks.items()
            if name not in on_host
        ),
        workspace=max(workspaces, default=0),
        host=kept + sum(_weight_bytes(networks[name], whole) for name in on_host),
    )
    if job_factors is None:
        return need
    return replace(need, weights=need.weights + job_factors.size * workload.dtype.itemsize)


def need_without_weights(
    setup: ModelSetup,
    networks: Mapping[str, nnx.Module],
    workload: Workload,
    options: ModelOptions,
) -> MemoryNeed:
    """Estimate as `memory_need` does for a model whose weights are not open.

    The files of LoRA that jobs may use are read.

    Raises:
        CheckpointError: one of them cannot be read, or does not fit the model.
    """
    names = setup.model.lora_names
    job_factors = JobLoraFactors(options.job_loras, trained_shapes(networks, names), names)
    return memory_need(setup.model, networks, setup.shapes, workload, job_factors)


def _weight_bytes(network: nnx.Module, workload: Workload) -> int:
    copies = workload.model
    return sum(
        math.prod(weight.shape)
        * held_dtype(weight, workload.dtype).itemsize
        // (1 if split_axis(weight.shape, copies) is None else copies)
        for weight in jax.tree.leaves(nnx.to_pure_dict(nnx.state(network)))
    )
