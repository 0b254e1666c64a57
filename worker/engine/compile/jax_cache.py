"""Compiling ahead of time, remembering it on disk, and counting what was compiled when.

Goes in: functions and the shapes they will see. Comes out: executables that never recompile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from imagefleet.shared.errors import ConfigurationError

_COMPILED: Final = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT: Final = "/jax/compilation_cache/cache_hits"


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
    for option, value in (
        ("jax_compilation_cache_dir", str(folder)),
        ("jax_persistent_cache_min_compile_time_secs", 0.0),
        ("jax_persistent_cache_min_entry_size_bytes", -1),
    ):
        jax.config.update(option, value)  # type: ignore[no-untyped-call]


@contextmanager
def past_cache() -> Iterator[None]:
    """What is compiled within is neither looked for in JAX's cache nor put there."""
    jax.config.update("jax_enable_compilation_cache", False)  # type: ignore[no-untyped-call]
    reset_cache()  # or JAX would not look at the option again
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)  # type: ignore[no-untyped-call]
        reset_cache()


class CompileCounter:
    """Programs this process compiled, or loaded from the cache, since the counter was made."""

    def __init__(self) -> None:
        self._count = 0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def __int__(self) -> int:
        return self._count

    def _heard(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        self._count += event == _COMPILED


class CacheHits:
    """Programs this process loaded from the cache since the counter was made."""

    def __init__(self) -> None:
        self._count = 0
        jax.monitoring.register_event_listener(self._heard)

    def __int__(self) -> int:
        return self._count

    def _heard(self, event: str, **kwargs: str | int) -> None:
        self._count += event == _CACHE_HIT
