"""Make the archive that deploy/gcloud/startup.sh installs: `python -m tools.tpu_archive`.

The wheel in `dist` comes in; `dist/imagefleet-VERSION-DIGEST.tar.gz` goes out, with the wheel, the
list of pinned packages, systemd's unit and the wheel of uv, whose hash is pinned, too. Equal
content gives an equal file.
"""

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[1]
_PLATFORM: Final = "manylinux2014_x86_64"
"""That of TPU VMs."""
_DIGITS: Final = 12
"""Digits of the digest in the name, so that no archive replaces another."""


def main() -> None:
    """Make the archive of the wheel in `dist`, and print its path and its SHA-256."""
    wheels = sorted((_ROOT / "dist").glob("imagefleet-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"dist has {len(wheels)} wheels of imagefleet; run make archive")
    with tempfile.TemporaryDirectory() as folder:
        archive = make_archive(wheels[0], _download_uv(Path(folder)), _ROOT / "dist")
    print(f"{archive.relative_to(_ROOT)}\n{hashlib.sha256(archive.read_bytes()).hexdigest()}")


def make_archive(wheel: Path, uv: Path, folder: Path) -> Path:
    """Write the archive of these two wheels into `folder`. Return its path."""
    data = _pack(
        {
            wheel.name: wheel,
            uv.name: uv,
            "requirements/tpu.txt": _ROOT / "requirements/tpu.txt",
            "imagefleet-worker.service": _ROOT / "deploy/systemd/imagefleet-worker.service",
        }
    )
    version = wheel.name.split("-")[1]
    archive = folder / f"imagefleet-{version}-{hashlib.sha256(data).hexdigest()[:_DIGITS]}.tar.gz"
    archive.write_bytes(data)
    return archive


def _pack(files: Mapping[str, Path]) -> bytes:
    """Return a tar archive of files by their names in it, without owners and times."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for name, file in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = file.stat().st_size
            with file.open("rb") as content:
                archive.addfile(entry, content)
    return gzip.compress(tar.getvalue(), mtime=0)


def uv_requirement(text: str) -> str:
    """Return the pin of uv with its hashes, from the text of requirements/build.txt."""
    lines = text.replace("\\\n", " ").splitlines()
    [pin] = [line for line in lines if line.startswith("uv==")]
    return pin


def _download_uv(folder: Path) -> Path:
    """Download the pinned wheel of uv for TPU VMs into `folder`. Return its path."""
    pins = folder / "uv.txt"
    pins.write_text(uv_requirement((_ROOT / "requirements/build.txt").read_text()))
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--platform", _PLATFORM]
    subprocess.run([*command, *options, "--dest", str(folder), "-r", str(pins)], check=True)
    [wheel] = folder.glob("uv-*.whl")
    return wheel


if __name__ == "__main__":
    main()
