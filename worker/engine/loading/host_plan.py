"""Plan a model for a TPU host that is not here: which meshes and batches fit, and how fast.

Input: a checkpoint's configs and a host. Output: for each mesh and size of a batch the memory that
a device needs, by the account of the worker's memory check, and a time where `TimeEstimate` has
one. It reads no weights and needs no TPU.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from flax import nnx

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.family_protocol import FamilyModel
from imagefleet.worker.engine.loading.find_checkpoint import open_checkpoint
from imagefleet.worker.engine.loading.memory_need import memory_need
from imagefleet.worker.engine.loading.read_model import (
    choose_dtype,
    choose_shapes,
    default_parameters,
    native_shape,
    read_supported,
)
from imagefleet.worker.engine.loading.time_estimate import TimeEstimate
from imagefleet.worker.engine.networks.matmul_flops import ImageFlops
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.memory_check import MemoryNeed, Workload
from imagefleet.worker.engine.placement.tpu_hosts import TpuHost

_PLATFORM: Final = "tpu"


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """It is a plan for one mesh and one size of its batch."""

    data: int
    model: int
    per_device_batch: int
    """Each copy of the weights denoises this many images at a time."""
    need: MemoryNeed
    fits: bool
    step_seconds: Mapping[Shape, float | None]
    """They are estimates for a step with guidance. None: there is none for such a batch."""

    @property
    def mesh(self) -> str:
        """Return the setting `mesh`."""
        return f"data={self.data},model={self.model}"

    @property
    def images(self) -> int:
        """Return the images of a batch."""
        return self.data * self.per_device_batch


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """It says what a host can do with a model."""

    host: TpuHost
    dtype: np.dtype[Any]
    shapes: tuple[Shape, ...]
    streams: bool
    """Whether the memory is that of streams instead of whole batches."""
    steps: int
    """It is the model's default."""
    batches: tuple[BatchPlan, ...]
    """They are in the order of the meshes, then of the sizes. The last of each mesh does not fit,
    unless it is the largest that the worker allows."""
    images_per_second: Mapping[Shape, float | None]
    """They are estimates for the whole host at the default steps, with one image on each device."""


def plan_host(
    folder: Path,
    host: TpuHost,
    *,
    shapes: Sequence[Shape] = (),
    dtype: str | None = None,
    options: ModelOptions | None = None,
    max_per_device_batch: int,
) -> HostPlan:
    """Plan the model in `folder` for a host.

    Args:
        folder: In the diffusers format. Only its configs are read.
        host: It need not be here.
        shapes: Image sizes that the worker would compile. Empty: the model's native size.
        dtype: `float32` or `bfloat16`. None: bfloat16.
        options: Of the worker.
        max_per_device_batch: The largest batch to plan for.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        ConfigurationError: the model does not support a shape, dtype or option.
    """
    # The count of FLOPs traces the networks on a CPU. On a TPU host, JAX would take the TPU.
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
    options = options or ModelOptions()
    files = open_checkpoint(folder, options.left_out)
    model = read_supported(files, options).with_control_nets(options.control_nets)
    shapes = choose_shapes(shapes or (native_shape(files, model),), model)
    steps, _ = default_parameters(files, model)
    networks = model.networks()
    chunks = max(1, options.prompt_chunks)
    flops = {shape: model.flops(networks, shape, chunks) for shape in shapes}
    planner = _Planner(model, networks, host, choose_dtype(dtype, _PLATFORM), flops, options)
    return HostPlan(
        host=host,
        dtype=planner.dtype,
        shapes=shapes,
        streams=options.streams,
        steps=steps,
        batches=tuple(planner.batches(max_per_device_batch)),
        images_per_second={
            shape: _rate(host, planner.times(1).image_seconds(each, steps))
            for shape, each in flops.items()
        },
    )


def _rate(host: TpuHost, image_seconds: float | None) -> float | None:
    return None if image_seconds is None else host.devices / image_seconds


@dataclass(frozen=True)
class _Planner:
    """The planner knows what all batches have in common."""

    source: FamilyModel
    networks: Mapping[str, nnx.Module]
    host: TpuHost
    dtype: np.dtype[Any]
    flops: Mapping[Shape, ImageFlops]
    options: ModelOptions

    def times(self, model: int) -> TimeEstimate:
        """Return what estimates times with this many devices a copy."""
        return TimeEstimate(
            generation=self.host.generation, dtype=self.dtype, devices_per_copy=model
        )

    def batches(self, limit: int) -> Iterator[BatchPlan]:
        """Yield for each mesh batches of 1, 2, 4 … images a copy, up to one that is too large."""
        for model in range(1, self.host.devices + 1):
            if self.host.devices % model:
                continue
            batch, fits = 1, True
            while fits and batch <= limit:
                planned = self._batch(model, batch)
                yield planned
                batch, fits = 2 * batch, planned.fits

    def _batch(self, model: int, per_device_batch: int) -> BatchPlan:
        workload = Workload(
            dtype=self.dtype,
            platform=_PLATFORM,
            device_kind=self.host.generation.device_kind,
            model=model,
            per_device_batch=per_device_batch,
            streams=self.options.streams,
            prompt_chunks=self.options.prompt_chunks,
            host_text_encoder=self.options.host_text_encoder,
        )
        need = memory_need(self.source, self.networks, tuple(self.flops), workload)
        times = self.times(model)
        return BatchPlan(
            data=self.host.devices // model,
            model=model,
            per_device_batch=per_device_batch,
            need=need,
            fits=need.total <= self.host.generation.memory_bytes,
            step_seconds={
                shape: times.step_seconds(flops, per_device_batch)
                for shape, flops in self.flops.items()
            },
        )
