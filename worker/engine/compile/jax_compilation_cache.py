"""Configure JAX's own compilation cache, and count compilations and cache hits.

Input: a folder for the cache. Output: counters. It does not depend on the programs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from imagefleet.worker.engine.compile.private_folder import make_private

_COMPILED: Final = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT: Final = "/jax/compilation_cache/cache_hits"


def use_cache(folder: Path) -> None:
    """Store compiled programs in `folder`. It is made private to this user, since they are code.

    Raises:
        ConfigurationError: other users could write there, or the folder cannot be created.
    """
    make_private(folder)
    for option, value in (
        ("jax_compilation_cache_dir", str(folder)),
        ("jax_persistent_cache_min_compile_time_secs", 0.0),
        ("jax_persistent_cache_min_entry_size_bytes", -1),
    ):
        jax.config.update(option, value)  # type: ignore[no-untyped-call]


@contextmanager
def bypass_cache() -> Iterator[None]:
    """Compile inside this context without reading or writing JAX's cache."""
    jax.config.update("jax_enable_compilation_cache", False)  # type: ignore[no-untyped-call]
    reset_cache()  # otherwise JAX does not read the option again
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)  # type: ignore[no-untyped-call]
        reset_cache()


class CompileCounter:
    """Count the programs that were compiled, or loaded from JAX's cache, since this was created."""

    def __init__(self) -> None:
        self._count = 0
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def __int__(self) -> int:
        return self._count

    def _on_event(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        self._count += event == _COMPILED


class CacheHits:
    """Count the programs that were loaded from JAX's cache since this was created."""

    def __init__(self) -> None:
        self._count = 0
        jax.monitoring.register_event_listener(self._on_event)

    def __int__(self) -> int:
        return self._count

    def _on_event(self, event: str, **kwargs: str | int) -> None:
        self._count += event == _CACHE_HIT
