"""What all benchmarks share: their command line, and as the last line JSON with their numbers, the
commit and the machine."""

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def parser_of(docstring: str | None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's command line, with the docstring of its module as help."""
    return argparse.ArgumentParser(
        description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def print_json(benchmark: str, figures: Mapping[str, Any], *, processor: str = "") -> None:
    """Print the line. `processor` names what did the work, if it is not this host's CPU."""
    kind = processor or platform.processor() or platform.machine()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    ).stdout.strip()
    hardware = f"{kind}, {os.cpu_count()} cores"
    line = {"benchmark": benchmark, **figures, "commit": commit, "hardware": hardware}
    print(json.dumps(line))
