"""`python -m benchmarks.traced_worker`: a worker that says on demand what its memory holds.

For each file `N.wanted` in the folder that `TRACE_FOLDER` names it writes `N.trace`, a snapshot of
tracemalloc after a full collection, and `N.json`: how many objects of each type the collector
tracks, and what the C library has allocated and holds.
"""

import ctypes
import gc
import json
import os
import threading
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Final

from imagefleet.worker.__main__ import main

FOLDER: Final = "TRACE_FOLDER"
_POLL_S: Final = 0.2


class _Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _watch(folder: Path) -> None:
    while True:
        for wanted in folder.glob("*.wanted"):
            _write(wanted.with_suffix(""))
            wanted.unlink()
        time.sleep(_POLL_S)


def _write(path: Path) -> None:
    gc.collect()
    if tracemalloc.is_tracing():
        tracemalloc.take_snapshot().dump(str(path.with_suffix(".trace")))
    counts = Counter(f"{type(each).__module__}.{type(each).__name__}" for each in gc.get_objects())
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    malloc = {"in_use": info.uordblks + info.hblkhd, "free": info.fordblks}
    path.with_suffix(".json").write_text(json.dumps({"types": counts, "malloc": malloc}))


if __name__ == "__main__":
    if os.environ.get("PYTHONTRACEMALLOC"):
        assert tracemalloc.is_tracing()
    threading.Thread(target=_watch, args=(Path(os.environ[FOLDER]),), daemon=True).start()
    main()
