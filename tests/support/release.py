"""The last release, built from the history of this repository."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

from tests.support.processes import ROOT
from tests.support.settings import other_variables

VERSION: Final = "0.1.0"
_LAYOUT: Final = 'packages = ["producer", "shared", "worker"]'
"""A line of pyproject.toml that release 0.1.0 has, and no commit after it."""


def release_commit() -> str:
    """Return the commit of release 0.1.0: the parent of the commit that changed its layout.

    Raises:
        CalledProcessError: this is no git checkout.
        RuntimeError: its history is not complete.
    """
    change = _git("log", "--format=%H", "-1", f"-S{_LAYOUT}", "--", "pyproject.toml").strip()
    try:
        return _git("rev-parse", "--verify", f"{change}^").strip()
    except subprocess.CalledProcessError:
        raise RuntimeError(
            f"this clone lacks the commits of release {VERSION}; run git fetch --unshallow"
        ) from None


def install_release(folder: Path) -> Path:
    """Build the wheel of release 0.1.0 and unpack it.

    Its commits are missing in a shallow clone, which `release_commit` says.

    Returns:
        The folder to put on `PYTHONPATH`: it holds `producer`, `shared` and `worker`.
    """
    source, dist, site = folder / "source", folder / "dist", folder / "site"
    archive = folder / "source.tar"
    folder.mkdir(parents=True, exist_ok=True)
    _git("archive", "--format=tar", f"--output={archive}", release_commit())
    source.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", source], check=True)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(dist)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    with zipfile.ZipFile(next(dist.glob(f"imagefleet-{VERSION}-*.whl"))) as wheel:
        wheel.extractall(site)
    return site


def release_environment(site: Path) -> dict[str, str]:
    """Return the variables with which a Python process imports the release."""
    return {**other_variables(), "PYTHONPATH": str(site)}


def _git(*arguments: str) -> str:
    ended = subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return ended.stdout
