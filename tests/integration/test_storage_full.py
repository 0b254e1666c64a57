"""A full disk: a file system of 64 KiB, mounted in a namespace of the test's own."""

import sys

import pytest

from tests.support.mounts import in_namespace

_FILL = """
import sys
from pathlib import Path
from imagefleet.shared.errors import StorageDenied
from imagefleet.shared.storage.folder import FolderStore

folder = Path(sys.argv[1])
store = FolderStore(folder)
store.put("jobs/a/0.png", b"old", "image/png")
try:
    store.put("jobs/a/0.png", bytes(100_000), "image/png")
except StorageDenied as error:
    print(error)
assert store.get("jobs/a/0.png") == b"old"
assert [path.name for path in folder.rglob("*") if path.is_file()] == ["0.png"]
store.put("jobs/b/0.png", b"there is room again", "image/png")
"""


def test_a_full_disk_is_reported_and_keeps_its_objects(tmp_path: object) -> None:
    mount = 'mount -t tmpfs -o size=64k none "$1"'
    if in_namespace(mount, str(tmp_path)).returncode:
        pytest.skip("this kernel lets only root mount a file system")
    result = in_namespace(
        f'{mount} && exec "$2" -c "$3" "$1"', str(tmp_path), sys.executable, _FILL
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("the disk is full\n")
