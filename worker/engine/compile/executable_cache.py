"""Cache executables in object stores, so that a new host neither traces nor compiles.

Input: a program's name, its inputs, a function that lowers it, and the environment that determines
what the compiler makes of it. Output: the executable, loaded from a store that has it under the
same fingerprint, else compiled and stored. It does not depend on the networks.

An executable is code and its file is a pickle: anyone who can write to a store could run code on
the workers. So every file is signed with the secret (HMAC-SHA256), and no file with a wrong
signature is opened. Without a secret the signature only detects damage; the folder must then be
private.
"""

import hashlib
import hmac
import logging
import os
import pickle
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import jax
from jax.experimental import serialize_executable

from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.storage import ObjectStore
from imagefleet.worker.engine.compile.jax_compilation_cache import CacheHits, bypass_cache
from imagefleet.worker.engine.compile.load_elsewhere import load_elsewhere
from imagefleet.worker.engine.compile.start_log import StartLog
from imagefleet.worker.engine.placement.mesh import Placement

log = logging.getLogger(__name__)

_SIGNATURE_BYTES: Final = hashlib.sha256().digest_size
_MEDIA_TYPE: Final = "application/octet-stream"
_COMPILER_VARIABLES: Final = ("JAX_", "XLA_", "LIBTPU_")
"""Prefixes of environment variables that change what is compiled."""
_OTHER_VARIABLES: Final = frozenset({"JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR"})
"""Variables with such a prefix that do not change what is compiled."""

_COMPILER_OPTIONS: Final[Mapping[str, dict[str, bool | str]]] = {
    "cpu": {"xla_backend_optimization_level": "2"}
}
"""It has the compiler options by platform. On CPU the default, level 3, takes 30 % longer to
compile programs that are no faster and whose results are bit-equal."""

_RECOMPILE: Final[dict[str, bool | str]] = {"xla_embed_ir_in_executable": False}
"""This is XLA's default. Setting it changes JAX's key, so that JAX's in-memory cache misses."""


@dataclass(frozen=True, kw_only=True)
class DeviceCopy:
    """It has the devices of a copy of the weights. All copies share the executables of the
    first."""

    devices: Sequence[jax.Device]
    first: Sequence[jax.Device]
    """These are the devices of the first copy."""

    @property
    def is_other(self) -> bool:
        """Return whether this is not the first copy."""
        return self.devices != self.first


class ExecutableCache:
    """The cache looks for executables in one or several stores, the nearest first."""

    def __init__(
        self,
        stores: Sequence[ObjectStore],
        environment: Mapping[str, str],
        devices: Sequence[jax.Device],
        secret: bytes = b"",
    ) -> None:
        """
        Args:
            stores: They are searched in this order. An executable found in one is copied to those
                before it.
            environment: All that determines an executable, apart from its name and inputs.
            devices: The devices that run the executables. The runtime aborts without this argument
                if they are fewer than the host's devices.
            secret: The key that signs the files.
        """
        self._stores = stores
        self.environment = [f"{name}={value}" for name, value in sorted(environment.items())]
        """It has what determines an executable apart from its name and inputs: `name=value`."""
        self._devices = devices
        self._secret = secret
        self.reloaded = 0
        """It is the number of executables loaded from a store."""
        self.compiled = 0
        """It is the number of executables that no store had."""
        self._jax_cache_hits = CacheHits()
        self.start_log = StartLog()

    def load_or_compile(
        self,
        name: str,
        inputs: Any,
        lower: Callable[[], jax.stages.Lowered],
        *,
        copy: "DeviceCopy | None" = None,
        number: str = "1 of 1",
    ) -> Any:
        """Return the executable of a program.

        Args:
            name: The name of the program.
            inputs: A tree of arrays or abstract arrays; their types, shapes and shardings are part
                of the fingerprint.
            lower: Called only if no store has the executable.
            copy: The part of the devices that runs it. None: all devices.
            number: Which program of how many it is, for the log: `2 of 6`.
        """
        key = self._key(name, inputs)
        stores_without: list[ObjectStore] = []
        for store in self._stores:
            signed = self._fetch(store, key)
            executable = None if signed is None else self._open(key, signed, store, copy)
            if signed is not None and executable is not None:
                self.reloaded += 1
                self._put(stores_without, key, signed)
                return executable
            stores_without.append(store)
        if copy is not None and copy.is_other:
            # The runtime cannot load the first copy's executable on these devices.
            devices = "-".join(str(device.id) for device in copy.devices)
            own = DeviceCopy(devices=copy.devices, first=copy.devices)
            own_name = f"{name}-on-{devices}"
            return self.load_or_compile(own_name, inputs, lower, copy=own, number=number)
        if not self.compiled:
            log.info(
                "no store has the executable %s, compiling it for %s",
                key,
                ", ".join(self.environment),
            )
        with self.start_log.stage(f"compiling program {number}: {name}"):
            compiled = self._compile(lower())
        self._put(stores_without, key, self._serialize(key, compiled))
        return compiled

    def compile_ahead(
        self, name: str, inputs: Any, lower: Callable[[], jax.stages.Lowered]
    ) -> bool:
        """Put the executable of a program into every store. The devices may be absent.

        Args:
            name: The name of the program.
            inputs: As in `load_or_compile`.
            lower: Called only if no store has the executable.

        Returns:
            Whether it was compiled. Otherwise a store had it.

        Raises:
            ImagefleetError: a store cannot be used.
        """
        key = self._key(name, inputs)
        found = [self._stored(store, key) for store in self._stores]
        signed = next((each for each in found if each is not None), None)
        is_new = signed is None
        if signed is None:
            signed = self._serialize(key, self._compile(lower()))
        for store, before in zip(self._stores, found, strict=True):
            if before is None:
                store.put(key, signed, _MEDIA_TYPE)
        return is_new

    def _key(self, name: str, inputs: Any) -> str:
        return f"{name}-{_digest(*self.environment, *_array_types(inputs))}"

    def _serialize(self, key: str, compiled: jax.stages.Compiled) -> bytes:
        content = pickle.dumps(serialize_executable.serialize(compiled))
        return self._sign(key, content) + content

    def _compile(self, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        hits = int(self._jax_cache_hits)
        target = self._devices[0].platform
        options = _COMPILER_OPTIONS.get(target, {})
        compiled = lowered.compile(options)
        self.compiled += 1
        if target != "cpu" or int(self._jax_cache_hits) == hits:
            return compiled
        # On CPU an executable from JAX's cache loses its functions when it is serialized again. The
        # runtime then fails with "Function … not found".
        with bypass_cache():
            return lowered.compile({**options, **_RECOMPILE})

    def _fetch(self, store: ObjectStore, key: str) -> bytes | None:
        try:
            return self._stored(store, key)
        except ImagefleetError as error:
            log.warning("cannot read the executable %s, compiling it: %s", store.url + key, error)
            return None

    def _stored(self, store: ObjectStore, key: str) -> bytes | None:
        """Return the signed file, or None if the store has none with the right signature."""
        try:
            signed = store.get(key)
        except KeyError:
            return None
        signature, content = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        if hmac.compare_digest(signature, self._sign(key, content)):
            return signed
        log.warning(
            "the executable %s is damaged or not signed with our secret, compiling it again",
            store.url + key,
        )
        return None

    def _open(
        self, key: str, signed: bytes, store: ObjectStore, copy: "DeviceCopy | None"
    ) -> Any | None:
        try:
            program, inputs, outputs = pickle.loads(signed[_SIGNATURE_BYTES:])
            if copy is not None and copy.is_other:
                return load_elsewhere((program, inputs, outputs), copy.first, copy.devices)
            devices = self._devices if copy is None else copy.devices
            return serialize_executable.deserialize_and_load(
                program, inputs, outputs, execution_devices=devices
            )
        except Exception as error:  # the runtime raises any kind, for example for another driver
            log.warning(
                "the executable %s cannot be loaded, compiling it again: %s", store.url + key, error
            )
            return None

    def _sign(self, key: str, content: bytes) -> bytes:
        # The signature covers the key, so that one executable cannot replace another.
        return hmac.digest(self._secret, key.encode() + b"\0" + content, "sha256")

    def _put(self, stores: Sequence[ObjectStore], key: str, signed: bytes) -> None:
        for store in stores:
            try:
                store.put(key, signed, _MEDIA_TYPE)
            except ImagefleetError as error:
                log.warning(
                    "cannot store the executable %s for the next start: %s", store.url + key, error
                )


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
