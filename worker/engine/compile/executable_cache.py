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
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import jax
from jax.experimental import serialize_executable

from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.storage import ObjectStore
from imagefleet.worker.engine.compile.fingerprint import keys_of
from imagefleet.worker.engine.compile.jax_compilation_cache import CacheHits, bypass_cache
from imagefleet.worker.engine.compile.load_elsewhere import load_elsewhere
from imagefleet.worker.engine.compile.start_log import StartLog

log = logging.getLogger(__name__)

_SIGNATURE_BYTES: Final = hashlib.sha256().digest_size
_MEDIA_TYPE: Final = "application/octet-stream"
_LOADS_AT_ONCE: Final = 4
"""So many executables are loaded at once. More would need more memory: one of an accelerator has up
to hundreds of MB."""

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


class _Found(NamedTuple):
    """It is what the stores have under a key."""

    key: str
    executable: Any | None


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
    ) -> Any:
        """Return the executable of a program, as `load_or_compile_all` does."""
        return self.load_or_compile_all({name: lower}, inputs, copy=copy)[0]

    def load_or_compile_all(
        self,
        lowerings: Mapping[str, Callable[[], jax.stages.Lowered]],
        inputs: Any,
        *,
        copy: "DeviceCopy | None" = None,
    ) -> list[Any]:
        """Return the executables of programs.

        Those that a store has are loaded in threads, as the runtime lets others run meanwhile; then
        the others are compiled one by one.

        Args:
            lowerings: They are by the names of the programs. One is called only if no store has the
                executable.
            inputs: A tree of arrays or abstract arrays; their types, shapes and shardings are part
                of the fingerprint.
            copy: The part of the devices that runs them. None: all devices.
        """
        keys = keys_of(lowerings, self.environment, inputs)
        with ThreadPoolExecutor(_LOADS_AT_ONCE, "load-executable") as threads:
            found = list(threads.map(partial(self._load, copy=copy), keys.values()))
        self.reloaded += sum(each.executable is not None for each in found)
        return [
            self._compile_missing(name, inputs, lower, copy, each, f"{number} of {len(found)}")
            if each.executable is None
            else each.executable
            for number, ((name, lower), each) in enumerate(
                zip(lowerings.items(), found, strict=True), 1
            )
        ]

    def _load(self, key: str, copy: "DeviceCopy | None") -> "_Found":
        """Load an executable from the nearest store that has it, and copy it to those before."""
        stores_without: list[ObjectStore] = []
        for store in self._stores:
            signed = self._fetch(store, key)
            executable = None if signed is None else self._open(key, signed, store, copy)
            if signed is not None and executable is not None:
                self._put(stores_without, key, signed)
                return _Found(key, executable)
            stores_without.append(store)
        return _Found(key, None)

    def _compile_missing(
        self,
        name: str,
        inputs: Any,
        lower: Callable[[], jax.stages.Lowered],
        copy: "DeviceCopy | None",
        found: "_Found",
        number: str,
    ) -> Any:
        if copy is not None and copy.is_other:
            # The runtime cannot load the first copy's executable on these devices.
            devices = "-".join(str(device.id) for device in copy.devices)
            own = DeviceCopy(devices=copy.devices, first=copy.devices)
            return self.load_or_compile(f"{name}-on-{devices}", inputs, lower, copy=own)
        if not self.compiled:
            log.info(
                "no store has the executable %s, compiling it for %s",
                found.key,
                ", ".join(self.environment),
            )
        with self.start_log.stage(f"compiling program {number}: {name}"):
            compiled = self._compile(lower())
        self._put(self._stores, found.key, self._serialize(found.key, compiled))
        return compiled

    def compile_ahead(
        self, name: str, inputs: Any, lower: Callable[[], jax.stages.Lowered]
    ) -> bool:
        """Put the executable of a program into every store. The devices may be absent.

        Args:
            name: The name of the program.
            inputs: As in `load_or_compile_all`.
            lower: Called only if no store has the executable.

        Returns:
            Whether it was compiled. Otherwise a store had it.

        Raises:
            ImagefleetError: a store cannot be used.
        """
        [key] = keys_of([name], self.environment, inputs).values()
        found = [self._stored(store, key) for store in self._stores]
        signed = next((each for each in found if each is not None), None)
        is_new = signed is None
        if signed is None:
            signed = self._serialize(key, self._compile(lower()))
        for store, before in zip(self._stores, found, strict=True):
            if before is None:
                store.put(key, signed, _MEDIA_TYPE)
        return is_new

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
