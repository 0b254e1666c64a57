"""Check whether a model fits the devices, before its weights are read.

Input: the bytes that a device needs, and the devices. Output: nothing, or an error that says how
much memory is needed, how much is free and which settings to change. The same error replaces the
runtime's own when the estimate was too low.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import jax
import numpy as np

from imagefleet.shared.errors import TooLittleMemory
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.mesh import Placement

_GIB: Final = 2**30
_EXHAUSTED: Final = "RESOURCE_EXHAUSTED"
_CGROUP: Final = Path("/sys/fs/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")
_ADVICE: Final = (
    "a smaller IMAGEFLEET_PER_DEVICE_BATCH, smaller IMAGEFLEET_SHAPES, IMAGEFLEET_DTYPE=bfloat16, "
    "or more devices a copy, as in IMAGEFLEET_MESH=data=4,model=2"
)
_HOST_ADVICE: Final = (
    "IMAGEFLEET_HOST_TEXT_ENCODER=false, a smaller IMAGEFLEET_TEXT_CACHE_BYTES, "
    "or IMAGEFLEET_INT8_WEIGHTS=true"
)


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """It has the bytes that one device needs."""

    weights: int
    workspace: int
    """A batch needs this many bytes besides the weights."""
    host: int = 0
    """The host needs this many bytes for encoded texts, and for its text encoder if it has one,
    whatever the number of devices."""

    @property
    def total(self) -> int:
        """Return the bytes of both on a device."""
        return self.weights + self.workspace


@dataclass(frozen=True, kw_only=True)
class Workload:
    """It says what a device is used for. The device may be absent."""

    dtype: np.dtype[Any]
    """It is the dtype of the weights."""
    platform: str
    """It is `cpu`, `gpu` or `tpu`."""
    device_kind: str
    """It is the kind of the device, as JAX names it."""
    model: int = 1
    """This many devices share one copy of the weights."""
    per_device_batch: int = 1
    """One copy of the weights denoises this many images at a time."""
    streams: bool = False
    """Whether the devices run streams instead of whole batches."""
    prompt_chunks: int = 0
    """A prompt with weights has at most this many chunks."""
    text_cache_bytes: int = 0
    """The host keeps encoded texts in at most this many bytes."""
    host_text_encoder: bool = False
    """Whether the host has the text encoder, and the devices have not."""

    @classmethod
    def of(
        cls,
        placement: Placement,
        dtype: np.dtype[Any],
        per_device_batch: int,
        options: ModelOptions,
    ) -> Self:
        """Return the workload of the devices of a placement."""
        return cls(
            dtype=dtype,
            platform=placement.platform,
            device_kind=placement.device_kind,
            model=placement.model,
            per_device_batch=per_device_batch,
            streams=options.streams,
            prompt_chunks=options.prompt_chunks,
            text_cache_bytes=options.text_cache_bytes,
            host_text_encoder=options.host_text_encoder,
        )


def require_memory(need: MemoryNeed, placement: Placement) -> None:
    """Require that the model fits. Passes if the runtime does not report its memory.

    Raises:
        TooLittleMemory: the model does not fit.
    """
    device = placement.mesh.devices.flat[0]
    if placement.platform == "cpu":
        # Virtual devices share the weights in the host's memory, and nothing else.
        needed = need.weights * placement.model + need.workspace * placement.mesh.size + need.host
        check_available(needed, host_memory(), "host")
    else:
        stats = device.memory_stats() or {}
        limit = stats.get("bytes_limit")
        free = None if limit is None else limit - stats.get("bytes_in_use", 0)
        check_available(need.total, free, device.device_kind)
        check_available(need.host, host_memory(), "host", _HOST_ADVICE)


def check_available(needed: int, available: int | None, where: str, advice: str = _ADVICE) -> None:
    """Compare bytes; `available` is None if unknown. An error gives this advice.

    Raises:
        TooLittleMemory: more bytes are needed than are available.
    """
    if available is not None and needed > available:
        raise TooLittleMemory(
            f"the model needs about {needed / _GIB:.1f} GiB and the {where} has "
            f"{available / _GIB:.1f} GiB free; try {advice}"
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
