"""The folder store writes objects whole or not at all, and maps errors of the system to ours."""

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagefleet.shared.errors import ImagefleetError, StorageDenied, StorageUnavailable
from imagefleet.shared.storage.folder import FolderStore
from tests.support.files import files_below

KEY = "jobs/a/0.png"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "images")


@pytest.mark.parametrize(
    ("number", "kind", "sentence"),
    [
        (errno.ENOSPC, StorageDenied, "the disk is full"),
        (errno.EDQUOT, StorageDenied, "quota"),
        (errno.EROFS, StorageDenied, "read-only"),
        (errno.EACCES, StorageDenied, "has no right"),
        (errno.EIO, StorageUnavailable, "error"),
        (errno.ESTALE, StorageUnavailable, "tale"),
    ],
)
def test_after_a_failed_put_only_the_old_object_remains(
    store: FolderStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[ImagefleetError],
    sentence: str,
) -> None:
    store.put(KEY, b"old", "image/png")

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind, match=sentence):
        store.put(KEY, b"new", "image/png")
    monkeypatch.undo()
    assert store.get(KEY) == b"old"
    assert [path.name for path in files_below(tmp_path)] == ["0.png"]


def test_readers_see_only_whole_objects_while_others_write(store: FolderStore) -> None:
    versions = [bytes([number]) * 100_000 for number in range(20)]
    store.put(KEY, versions[0], "image/png")

    def read(_: int) -> bytes:
        return store.get(KEY)

    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(store.put, KEY, version, "image/png") for version in versions]
        read_contents = list(pool.map(read, range(50)))
        for write in writes:
            write.result()
    assert set(read_contents) <= set(versions)


def test_the_temporary_file_of_a_killed_put_is_not_listed(
    store: FolderStore, tmp_path: Path
) -> None:
    store.put(KEY, b"x", "image/png")
    (tmp_path / "images/jobs/a/.1.png.0123").write_bytes(b"half")
    assert list(store.list()) == [KEY]


def test_the_check_reports_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "images").write_text("not a folder")
    with pytest.raises(StorageDenied, match="there is a file where a folder is needed"):
        FolderStore(tmp_path / "images").check()


def test_the_check_reports_a_folder_without_write_access() -> None:
    with pytest.raises(StorageDenied, match=r"/sys/images.*(no right|read-only)"):
        FolderStore(Path("/sys/images")).check()


def test_objects_have_the_permissions_that_the_umask_allows(
    store: FolderStore, tmp_path: Path
) -> None:
    with _umask(0o022):
        store.put(KEY, b"x", "image/png")
    assert (tmp_path / "images" / KEY).stat().st_mode & 0o777 == 0o644


def test_a_folder_is_removed_with_its_last_object_but_the_root_is_not(
    store: FolderStore, tmp_path: Path
) -> None:
    for key in ("parts/0/a/1.tar", "parts/0/a/2.tar", "parts/1/b.tar"):
        store.put(key, b"x", "application/x-tar")
    store.delete("parts/0/a/1.tar")
    assert store.exists("parts/0/a/2.tar")
    store.delete("parts/0/a/2.tar")
    assert [path.name for path in (tmp_path / "images/parts").iterdir()] == ["1"]
    store.delete("parts/1/b.tar")
    assert list((tmp_path / "images").iterdir()) == []


def test_delete_below_removes_the_temporary_files_of_killed_puts(
    store: FolderStore, tmp_path: Path
) -> None:
    store.put("parts/0/a/1.tar", b"x", "application/x-tar")
    (tmp_path / "images/parts/0/a/.2.tar.killed").touch()
    store.delete_below("parts/0")
    assert list((tmp_path / "images").iterdir()) == []


def test_a_folder_that_cannot_be_listed_is_an_error_not_empty(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(KEY, b"x", "image/png")
    assert list(store.list("nothing/here/")) == []
    with pytest.raises(StorageDenied, match="there is a file where a folder is needed"):
        list(store.list(f"{KEY}/"))

    def fail(path: str) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(StorageDenied, match="has no right"):
        list(store.list("jobs/"))


def test_puts_succeed_while_others_delete_the_last_object_of_the_folder(store: FolderStore) -> None:
    def put_and_delete(number: int) -> list[bytes]:
        contents = []
        for turn in range(50):
            key, data = f"parts/{number % 2}/{number}.tar", b"%d" % turn
            store.put(key, data, "application/x-tar")
            contents.append(store.get(key))
            store.delete(key)
        return contents

    with ThreadPoolExecutor(4) as pool:
        for contents in pool.map(put_and_delete, range(4)):
            assert contents == [b"%d" % turn for turn in range(50)]
    assert list(store.list()) == []


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
