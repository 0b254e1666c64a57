"""Executables kept from one start to the next, so that a new host neither traces nor compiles.

Goes in: a program's name, how to lower it, and everything that decides what a compiler makes of it.
Comes out: the executable, off the shelf if one lies there under the same fingerprint, else compiled
and put there. Knows no networks.

An executable is code, and its file a pickle: whoever can write to the shelf runs code on the
workers. So every file is sealed with the secret, and one whose seal is wrong is not opened. Without
a secret the seal only shows damage; then the folder must be private.
"""

import hashlib
import hmac
import logging
import os
import pickle
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import jax
from jax.experimental import serialize_executable

from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.storage import ObjectStore
from imagefleet.worker.engine.compile.jax_cache import CacheHits, past_cache
from imagefleet.worker.engine.mesh import Placement

log = logging.getLogger(__name__)

_SEAL_BYTES: Final = hashlib.sha256().digest_size
_COMPILER_VARIABLES: Final = ("JAX_", "XLA_", "LIBTPU_")
"""Beginnings of environment variables that change what is compiled."""
_NOT_COMPILING: Final = frozenset({"JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR"})

_OPTIONS: Final[Mapping[str, dict[str, bool | str]]] = {
    "cpu": {"xla_backend_optimization_level": "2"}
}
"""By platform, what its compiler is told. On CPU level 3, the default, spends three tenths more on
programs that are no faster and whose numbers are the same to the bit."""

_ANEW: Final[dict[str, bool | str]] = {"xla_embed_ir_in_executable": False}
"""What XLA does anyway; but JAX takes it for a program that it does not have in memory."""


class ExecutableCache:
    """Where executables lie: one store or several, the nearest first."""

    def __init__(
        self,
        stores: Sequence[ObjectStore],
        surroundings: Mapping[str, str],
        devices: Sequence[jax.Device],
        secret: bytes = b"",
    ) -> None:
        """
        Args:
            stores: Asked in this order; what one lacks is put there.
            surroundings: What decides what a program becomes, apart from its name and inputs.
            devices: Those it runs on, which may be fewer than there are: the runtime aborts where
                they are not said.
            secret: Seals the files.
        """
        self._stores = stores
        self._surroundings = [f"{name}={value}" for name, value in sorted(surroundings.items())]
        self._devices = devices
        self._secret = secret
        self.reloaded = 0
        """Programs that a store had."""
        self.compiled = 0
        """Programs that none had."""
        self._from_cache = CacheHits()

    def executable(self, name: str, inputs: Any, lower: Callable[[], jax.stages.Lowered]) -> Any:
        """The program of this name for inputs of these types and places, a tree of arrays or of
        what stands for them; `lower` is called only if no store has it."""
        key = f"{name}-{_digest(*self._surroundings, *_types(inputs))}"
        lacking: list[ObjectStore] = []
        for store in self._stores:
            sealed = self._fetch(store, key)
            found = None if sealed is None else self._open(key, sealed, store)
            if sealed is not None and found is not None:
                self.reloaded += 1
                self._put(lacking, key, sealed)
                return found
            lacking.append(store)
        made = self._compile(lower())
        self.compiled += 1
        content = pickle.dumps(serialize_executable.serialize(made))
        self._put(lacking, key, self._seal(key, content) + content)
        return made

    def _compile(self, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        hits = int(self._from_cache)
        options = _OPTIONS.get(jax.default_backend(), {})
        made = lowered.compile(options)
        if jax.default_backend() != "cpu" or int(self._from_cache) == hits:
            return made
        # One out of JAX's cache has lost its functions when it is saved again, on CPU only: the
        # runtime says "Function … not found" as it runs.
        with past_cache():
            return lowered.compile({**options, **_ANEW})

    def _fetch(self, store: ObjectStore, key: str) -> bytes | None:
        try:
            return store.get(key)
        except KeyError:
            return None
        except ImagefleetError as error:
            log.warning("cannot look for %s, going on without it: %s", store.url + key, error)
            return None

    def _open(self, key: str, sealed: bytes, store: ObjectStore) -> Any | None:
        seal, content = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._seal(key, content)):
            log.warning("%s is damaged or not sealed by us: compiling anew", store.url + key)
            return None
        try:
            program, inputs, outputs = pickle.loads(content)
            return serialize_executable.deserialize_and_load(
                program, inputs, outputs, execution_devices=self._devices
            )
        except Exception as error:  # the runtime's, of any kind: a driver that changed, say
            log.warning("%s cannot be loaded, compiling anew: %s", store.url + key, error)
            return None

    def _seal(self, key: str, content: bytes) -> bytes:
        # With the key: an executable cannot be passed off as another.
        return hmac.digest(self._secret, key.encode() + b"\0" + content, "sha256")

    def _put(self, stores: Sequence[ObjectStore], key: str, sealed: bytes) -> None:
        for store in stores:
            try:
                store.put(key, sealed, "application/octet-stream")
            except ImagefleetError as error:
                log.warning("%s is not kept for the next start: %s", store.url + key, error)


def surroundings(placement: Placement) -> dict[str, str]:
    """What a host, its libraries and our own source add to a fingerprint."""
    device = placement.mesh.devices.flat[0]
    settings = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_COMPILER_VARIABLES) and name not in _NOT_COMPILING
    }
    return {
        **{library: version(library) for library in ("jax", "jaxlib", "flax")},
        "runtime": device.client.platform_version,
        "device": f"{device.device_kind} of {len(jax.local_devices())}",
        "processor": _processor() if placement.platform == "cpu" else "",
        "mesh": str(dict(placement.mesh.shape)),
        "settings": str(sorted(settings.items())),
        "source": source_digest(Path(__file__).parents[1]),
    }


def _types(inputs: Any) -> list[str]:
    """A line for every array."""
    return [
        f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape} {leaf.sharding.spec}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(inputs)
    ]


def source_digest(folder: Path) -> str:
    """Of the Python files below `folder`: they say what is computed."""
    files = sorted(folder.rglob("*.py"))
    return _digest(*(f"{path.relative_to(folder)} {_digest(path.read_bytes())}" for path in files))


def _processor() -> str:
    """A program for a CPU uses what this very CPU can do."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().split("\n\n")[0].splitlines() if about.exists() else []
    told = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return _digest(platform.machine(), *told)


def _digest(*parts: str | bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()[:32]
