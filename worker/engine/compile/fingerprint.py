"""Fingerprint what determines an executable: host, libraries, settings, our source code, inputs.

Input: a placement, whose devices may be absent, or a tree of arrays. Output: texts and digests. It
compiles nothing.
"""

import hashlib
import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import jax

from imagefleet.worker.engine.placement.mesh import Placement

_COMPILER_VARIABLES: Final = ("JAX_", "XLA_", "LIBTPU_")
"""Prefixes of environment variables that change what is compiled."""
_OTHER_VARIABLES: Final = frozenset({"JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR"})
"""Variables with such a prefix that do not change what is compiled."""


def keys_of(names: Iterable[str], environment: Iterable[str], inputs: Any) -> dict[str, str]:
    """Return the keys under which the executables of programs are stored, by name.

    Args:
        names: Of the programs.
        environment: What determines their executables apart from name and inputs.
        inputs: A tree of arrays or abstract arrays, the same for all of them.
    """
    fingerprint = _digest(*environment, *_array_types(inputs))
    return {name: f"{name}-{fingerprint}" for name in names}


def texts_fingerprint(environment: Iterable[str], encoder: str, *, on_cpu: bool) -> str:
    """Return what determines the bits that a text encoder makes of a text of one shape.

    Args:
        environment: As in `keys_of`.
        encoder: Names the weights and how they are used.
        on_cpu: Whether a CPU encodes texts. XLA may add up in another order on more cores.
    """
    cores = f"{_processor()} {os.cpu_count()}" if on_cpu else ""
    return _digest(*environment, encoder, cores)


def environment(placement: Placement) -> dict[str, str]:
    """Return what the host, its libraries and our source code add to a fingerprint.

    The devices may be absent: libtpu describes those of a TPU host as the host itself does.
    """
    device = placement.mesh.devices.flat[0]
    host = [each for each in device.client.devices() if each.process_index == device.process_index]
    variables = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_COMPILER_VARIABLES) and name not in _OTHER_VARIABLES
    }
    return {
        **{library: version(library) for library in ("jax", "jaxlib", "flax")},
        "runtime": " ".join(device.client.platform_version.split()),
        "device": f"{device.device_kind} of {len(host)}",
        "processor": _processor() if placement.platform == "cpu" else "",
        "mesh": f"{dict(placement.mesh.shape)} {placement.mesh.devices.tolist()}",
        "settings": str(sorted(variables.items())),
        "source": source_digest(ENGINE_FOLDER),
    }


ENGINE_FOLDER: Final = Path(__file__).parents[1]
"""`worker/engine`: the Python files below it determine what is computed."""


def source_digest(folder: Path) -> str:
    """Digest the names and contents of all Python files below `folder`."""
    files = sorted(folder.rglob("*.py"))
    return _digest(*(f"{path.relative_to(folder)} {_digest(path.read_bytes())}" for path in files))


def _array_types(inputs: Any) -> list[str]:
    """Return one line for every array: its path, dtype, shape and sharding."""
    return [
        f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape} {leaf.sharding.spec}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(inputs)
    ]


def _processor() -> str:
    """Digest the CPU's features: XLA compiles for the features of this very CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().split("\n\n")[0].splitlines() if cpuinfo.exists() else []
    features = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return _digest(platform.machine(), *features)


def _digest(*parts: str | bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()[:32]
