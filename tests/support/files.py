"""The files in a folder to which workers may write at the same time."""

import os
from pathlib import Path


def files_below(folder: Path) -> list[Path]:
    """Return all files, sorted. Unlike `Path.rglob` this ignores folders that vanish meanwhile."""
    return sorted(Path(at, name) for at, _, names in os.walk(folder) for name in names)
