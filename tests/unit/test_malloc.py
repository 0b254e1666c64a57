"""The worker returns large buffers to the system, in whichever thread they were."""

import subprocess
import sys

_SCRIPT = """
import gc, sys, threading
from pathlib import Path
from imagefleet.shared.process.malloc import return_large_buffers

def rss_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 1_000_000

if sys.argv[1] == "returned":
    return_large_buffers()
first = b"x" * 30_000_000
del first  # from now on glibc keeps buffers of this size, unless it was told otherwise
before, kept, threads = rss_mb(), [], threading.Barrier(5)

def use_buffer():
    threads.wait()  # all are alive at once, so each has an arena
    buffer = b"x" * 20_000_000
    kept.append(b"y" * 1_000)  # behind the buffer
    del buffer
    threads.wait()

for _ in range(4):
    threading.Thread(target=use_buffer).start()
threads.wait()
threads.wait()
print(rss_mb() - before)
"""


def _megabytes_kept(how: str) -> int:
    command = [sys.executable, "-c", _SCRIPT, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_large_buffers_are_returned_though_small_objects_lie_behind_them() -> None:
    assert _megabytes_kept("returned") < 10
    assert _megabytes_kept("by default") > 30, "the script does not show the difference"
