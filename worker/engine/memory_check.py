"""Whether a model fits, asked before a weight is read, and the answer when it did not after all.

Goes in: configs, the size of a batch, what there is. Comes out: nothing, or one sentence that says
what is needed, what there is and which settings to change.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np

from imagefleet.shared.errors import TooLittleMemory
from imagefleet.worker.engine.attention import SCORE_LIMIT, Backend, Task, choose
from imagefleet.worker.engine.checkpoint.configs import Configs
from imagefleet.worker.engine.interface import Shape
from imagefleet.worker.engine.mesh import Placement
from imagefleet.worker.engine.models.unet_config import UNetConfig

_GIB: Final = 2**30
_EXHAUSTED: Final = "RESOURCE_EXHAUSTED"
_CGROUP: Final = Path("/sys/fs/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")
_WAYS_OUT: Final = (
    "a smaller per_device_batch, smaller shapes, dtype=bfloat16, "
    "or more devices a copy (mesh=data=4,model=2)"
)
_DECODER_MAPS: Final = 6
"""Full-size maps alive at once in the decoder, as wide as its first level: XLA's own account of
Stable Diffusion 1.4 at 512x512, 768 MiB."""
_UNET_MAPS: Final = 27
"""The same of the UNet beside its scores, skips and all: 268 MiB for a prompt and its negative."""


def workspace(
    configs: Configs, shape: Shape, *, per_device_batch: int, dtype: np.dtype[Any], platform: str
) -> int:
    """Bytes that a device takes to paint, beside the weights; an estimate."""
    pixels = shape.height * shape.width
    decoder = _DECODER_MAPS * pixels * configs.vae.block_out_channels[0] * dtype.itemsize
    latents = pixels // configs.vae.downsampling**2
    maps = _UNET_MAPS * latents * configs.unet.block_out_channels[0] * dtype.itemsize
    step = 2 * (maps + max(_scores(configs.unet, latents, dtype, platform), default=0))
    return per_device_batch * max(decoder, step)


def _scores(unet: UNetConfig, latents: int, dtype: np.dtype[Any], platform: str) -> Iterator[int]:
    """Bytes of attention's scores at every level that attends."""
    for level, attends in enumerate(unet.down_attends):
        heads, width = unet.heads[level], unet.block_out_channels[level]
        length = latents >> 2 * level
        task = Task(queries=length, keys=length, heads=heads, head_dim=width // heads, dtype=dtype)
        if attends and choose(platform, task) in (Backend.FOLDED, Backend.CHUNKED):
            yield min(task.score_bytes, SCORE_LIMIT[platform])


def require_room(weights: int, workspace: int, placement: Placement) -> None:
    """
    Args:
        weights: Bytes of all the weights that one device holds.
        workspace: Bytes that a device needs beside them while it paints.

    Raises:
        TooLittleMemory: the devices have less. Says nothing where the runtime does not.
    """
    device = placement.mesh.devices.flat[0]
    if placement.platform == "cpu":
        # Virtual devices share the host's memory, and each keeps what it holds to itself.
        check((weights + workspace) * placement.mesh.size, host_memory(), "host")
    else:
        stats = device.memory_stats() or {}
        limit = stats.get("bytes_limit")
        free = None if limit is None else limit - stats.get("bytes_in_use", 0)
        check(weights + workspace, free, device.device_kind)


def check(needed: int, available: int | None, where: str) -> None:
    """
    Raises:
        TooLittleMemory: `needed` bytes are more than are `available`.
    """
    if available is not None and needed > available:
        raise TooLittleMemory(
            f"the model needs about {needed / _GIB:.1f} GiB and the {where} has "
            f"{available / _GIB:.1f} GiB free; try {_WAYS_OUT}"
        )


def host_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Bytes this process may still take: what the host has, or the container's limit leaves."""
    free = []
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free.append(int(lines["MemAvailable"].split()[0]) * 1024)
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if limit.exists() and limit.read_text().strip() != "max":
        free.append(int(limit.read_text()) - int(used.read_text()))
    return min(free, default=None)


@contextmanager
def said_clearly() -> Iterator[None]:
    """Turn the runtime's answer, when memory ends while a program is made or first run, into ours.

    Raises:
        TooLittleMemory: in its stead.
    """
    try:
        yield
    except Exception as error:
        cause = error if isinstance(error, jax.errors.JaxRuntimeError) else error.__cause__
        if not isinstance(cause, jax.errors.JaxRuntimeError) or _EXHAUSTED not in str(cause):
            raise
        reason = str(cause).strip().splitlines()[0]
        raise TooLittleMemory(
            f"the devices have too little memory for this model and batch ({reason}); "
            f"try {_WAYS_OUT}"
        ) from error
