"""`python -m tests.alerts.odd_worker`: a worker whose pretended device has memory and a compiler.

The fake engine has neither. Once the file that `ODD_DEVICE_FILE` names exists, the memory of the
device is almost used up, and a program has been compiled after the worker was ready.
"""

import os
from pathlib import Path
from typing import Final

from imagefleet.worker.commands.cli import main
from imagefleet.worker.engine.contract.device_memory import DeviceMemory
from imagefleet.worker.engine.fake.fake_engine import FakeEngine

FILE: Final = "ODD_DEVICE_FILE"


def _is_odd() -> bool:
    return Path(os.environ[FILE]).exists()


def _memory(self: FakeEngine) -> list[DeviceMemory]:
    return [DeviceMemory(used=97 if _is_odd() else 50, limit=100)]


def _recompiles(self: FakeEngine) -> int:
    return int(_is_odd())


if __name__ == "__main__":
    FakeEngine.memory = _memory  # type: ignore[method-assign]
    FakeEngine.recompiles = property(_recompiles)  # type: ignore[method-assign, assignment]
    main()
