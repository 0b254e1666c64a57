"""Check whether a model fits the devices, before its weights are read.

Goes in: configs, the size of a batch, the free memory. Comes out: nothing, or an error that says
how much memory is needed, how much is free and which settings to change. The same error replaces
the runtime's own when the estimate was too low.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np

from imagefleet.shared.errors import TooLittleMemory
from imagefleet.worker.engine.attention import (
    MAX_SCORE_BYTES,
    Backend,
    choose_backend,
)
from imagefleet.worker.engine.attention_layers import unet_layers
from imagefleet.worker.engine.checkpoint.configs import Configs
from imagefleet.worker.engine.interface import Shape
from imagefleet.worker.engine.mesh import Placement

_GIB: Final = 2**30
_EXHAUSTED: Final = "RESOURCE_EXHAUSTED"
_CGROUP: Final = Path("/sys/fs/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")
_ADVICE: Final = (
    "a smaller per_device_batch, smaller shapes, dtype=bfloat16, "
    "or more devices a copy (mesh=data=4,model=2)"
)
_DECODER_MAPS: Final = {"cpu": 6, "gpu": 6, "tpu": 11}
"""Full-size maps, as wide as the decoder's first level, that the decoder holds at once. On CPU
measured with XLA's memory analysis of Stable Diffusion 1.4 at 512x512: 768 MiB. The TPU compiler
takes 13.7 at 512x512 and 9.7 for SDXL at 1024x1024; see docs/tpu.md."""
_UNET_MAPS: Final = 27
"""Maps that the UNet holds at once besides its scores, skips included. Measured in the same way:
268 MiB for a prompt and its negative prompt."""


def workspace_bytes(
    configs: Configs, shape: Shape, *, per_device_batch: int, dtype: np.dtype[Any], platform: str
) -> int:
    """Estimate the bytes that a device needs for a batch, besides the weights."""
    pixels = shape.height * shape.width
    decoder_map = pixels * configs.vae.block_out_channels[0] * dtype.itemsize
    decoder = _DECODER_MAPS[platform] * decoder_map
    latents = pixels // configs.vae.downsampling**2
    maps = _UNET_MAPS * latents * configs.unet.block_out_channels[0] * dtype.itemsize
    step = 2 * (maps + max(_score_bytes(configs, latents, dtype, platform), default=0))
    return per_device_batch * max(decoder, step)


def _score_bytes(
    configs: Configs, latents: int, dtype: np.dtype[Any], platform: str
) -> Iterator[int]:
    """Yield the bytes of the attention scores of each layer of the UNet that stores them."""
    for layer in unet_layers(configs, latents, dtype):
        if choose_backend(platform, layer) in (Backend.FOLDED, Backend.CHUNKED):
            yield min(layer.score_bytes, MAX_SCORE_BYTES[platform])


def require_memory(weights: int, workspace: int, placement: Placement) -> None:
    """Require that the model fits. Passes if the runtime does not report its memory.

    Args:
        weights: Bytes of all weights that one device holds.
        workspace: Bytes that a device needs besides them for a batch.
        placement: The devices.

    Raises:
        TooLittleMemory: the model does not fit.
    """
    device = placement.mesh.devices.flat[0]
    if placement.platform == "cpu":
        # Virtual devices share the host's memory, but each has its own copy of all arrays.
        check_available((weights + workspace) * placement.mesh.size, host_memory(), "host")
    else:
        stats = device.memory_stats() or {}
        limit = stats.get("bytes_limit")
        free = None if limit is None else limit - stats.get("bytes_in_use", 0)
        check_available(weights + workspace, free, device.device_kind)


def check_available(needed: int, available: int | None, where: str) -> None:
    """Compare bytes; `available` is None if unknown.

    Raises:
        TooLittleMemory: more bytes are needed than are available.
    """
    if available is not None and needed > available:
        raise TooLittleMemory(
            f"the model needs about {needed / _GIB:.1f} GiB and the {where} has "
            f"{available / _GIB:.1f} GiB free; try {_ADVICE}"
        )


def host_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Return the bytes that this process can still allocate; None if unknown.

    This is the smaller of the host's free memory and the rest of the container's limit (cgroup v2).
    """
    free = []
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free.append(int(lines["MemAvailable"].split()[0]) * 1024)
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if limit.exists() and limit.read_text().strip() != "max":
        free.append(int(limit.read_text()) - int(used.read_text()))
    return min(free, default=None)


@contextmanager
def memory_errors() -> Iterator[None]:
    """Convert the runtime's `RESOURCE_EXHAUSTED` to `TooLittleMemory`.

    Use it around the compilation and the first run of programs.
    """
    try:
        yield
    except Exception as error:
        cause = error if isinstance(error, jax.errors.JaxRuntimeError) else error.__cause__
        if not isinstance(cause, jax.errors.JaxRuntimeError) or _EXHAUSTED not in str(cause):
            raise
        reason = str(cause).strip().splitlines()[0]
        raise TooLittleMemory(
            f"the devices have too little memory for this model and batch ({reason}); try {_ADVICE}"
        ) from error
