"""Describe NVIDIA GPUs to XLA's compiler, and make meshes of one that this machine does not have.

Input: the name of a GPU. Output: its device, for which JAX compiles. It needs JAX's plugin for CUDA
with cuDNN and ptxas, but no GPU and no driver.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import jax
from jax.experimental import topologies

from imagefleet.worker.engine.placement.mesh import Placement


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, as NVIDIA's data sheets and CUDA's device queries have it."""

    name: str
    """As JAX names it."""
    capability: tuple[int, int]
    cores: int
    """Streaming multiprocessors."""
    float32_units: int
    """Of a core."""
    clock_ghz: float
    memory_bytes: int
    memory_bytes_per_s: int
    l2_bytes: int
    shared_bytes: int
    """Of a core."""

    def target_config(self) -> str:
        """Return XLA's `GpuTargetConfigProto` in its text format
        (xla/stream_executor/device_description.proto)."""
        major, minor = self.capability
        cudnn = version("nvidia-cudnn-cu12").split(".")
        return f"""
            platform_name: "CUDA"
            device_description_str: "{self.name}"
            dnn_version_info {{ major: {cudnn[0]} minor: {cudnn[1]} patch: {cudnn[2]} }}
            gpu_device_info {{
              cuda_compute_capability {{ major: {major} minor: {minor} }}
              core_count: {self.cores} fpus_per_core: {self.float32_units}
              clock_rate_ghz: {self.clock_ghz} l2_cache_size: {self.l2_bytes}
              device_memory_size: {self.memory_bytes}
              memory_bandwidth: {self.memory_bytes_per_s}
              shared_memory_per_block: 49152 shared_memory_per_core: {self.shared_bytes}
              shared_memory_per_block_optin: {self.shared_bytes - 1024}
              registers_per_core_limit: 65536 registers_per_block_limit: 65536
              threads_per_block_limit: 1024 threads_per_core_limit: 2048 threads_per_warp: 32
              block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
            }}"""


GPUS: Final[Mapping[str, Gpu]] = {
    "a100": Gpu(
        name="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        cores=108,
        float32_units=64,
        clock_ghz=1.41,
        memory_bytes=85_100_068_864,
        memory_bytes_per_s=2_039_040_000_000,
        l2_bytes=40 * 2**20,
        shared_bytes=164 * 2**10,
    ),
    "h100": Gpu(
        name="NVIDIA H100 80GB HBM3",
        capability=(9, 0),
        cores=132,
        float32_units=128,
        clock_ghz=1.98,
        memory_bytes=84_942_979_072,
        memory_bytes_per_s=3_352_320_000_000,
        l2_bytes=50 * 2**20,
        shared_bytes=228 * 2**10,
    ),
}


def placement_of(gpu: Gpu) -> Placement:
    """Make a mesh of one GPU. JAX uses only the CPU in this process from now on."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
    described = topologies.get_topology_desc(
        platform="cuda",
        topology_name=gpu.name,
        topology="1x1x1",
        target_config=gpu.target_config(),
    )
    _ask_for(gpu)
    return Placement.over(described.devices, 1, 1)


def _ask_for(gpu: Gpu) -> None:
    """Have JAX lower attention for this GPU: before it uses cuDNN's kernel, it asks the GPUs of
    this machine for their compute capability. JAX has no public way to say it."""
    from jax._src.cudnn import fused_attention_stablehlo

    module: Any = fused_attention_stablehlo
    major, minor, patch = (int(part) for part in version("nvidia-cudnn-cu12").split(".")[:3])
    module.check_cudnn_version = lambda: 10_000 * major + 100 * minor + patch
    module.check_compute_capability = lambda capability: _parse(capability) <= gpu.capability
    module.is_cuda_compute_capability_equal = lambda capability: (
        _parse(capability) == gpu.capability
    )


def _parse(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)
