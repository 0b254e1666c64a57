"""Start a process without Python's search for unreachable cycles of objects."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collecting_later() -> Iterator[None]:
    """Search for no unreachable cycles inside this context, nor later among what was made in it.

    For the start of a process that keeps what it makes. Python would look through hundreds of
    thousands of objects of libraries and networks again and again, and find almost nothing; the
    first search after the start would look through all of them while a job runs.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
