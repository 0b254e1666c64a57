"""Compiling ahead of time, remembering it on disk, and counting what was compiled when.

Goes in: functions and the shapes they will see. Comes out: executables that never recompile.
"""

import threading
from pathlib import Path
from typing import Final

import jax

from shared.errors import ConfigurationError

_COMPILED: Final = "/jax/core/compile/backend_compile_duration"


def use_cache(folder: Path) -> None:
    """Keep compiled programs in `folder`, which only this user may enter: they are code.

    Raises:
        ConfigurationError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigurationError(f"cache_dir {folder} cannot be used: {error}") from error
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class CompileCounter:
    """Programs this process has compiled, or loaded from the cache, so far.

    JAX's listeners are global and cannot be taken away one by one, so there is one counter.
    """

    _lock = threading.Lock()
    _count = 0
    _listening = False

    @classmethod
    def start(cls) -> None:
        """Count from now on. Again: nothing happens."""
        with cls._lock:
            if not cls._listening:
                jax.monitoring.register_event_duration_secs_listener(cls._heard)
                cls._listening = True

    @classmethod
    def count(cls) -> int:
        return cls._count

    @classmethod
    def _heard(cls, event: str, duration: float, **_: object) -> None:
        if event == _COMPILED:
            with cls._lock:
                cls._count += 1
