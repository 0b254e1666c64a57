"""What lies in a folder that workers may be writing to and clearing at the same time."""

import os
from pathlib import Path


def files_below(folder: Path) -> list[Path]:
    """All files, sorted. Where `Path.rglob` fails because a folder went meanwhile, this goes on."""
    return sorted(Path(at, name) for at, _, names in os.walk(folder) for name in names)
