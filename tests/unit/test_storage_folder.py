"""The folder store: whole or not at all, and its errors in our words."""

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
    return FolderStore(tmp_path / "pictures")


@pytest.mark.parametrize(
    ("number", "kind", "says"),
    [
        (errno.ENOSPC, StorageDenied, "the disk is full"),
        (errno.EDQUOT, StorageDenied, "quota"),
        (errno.EROFS, StorageDenied, "read-only"),
        (errno.EACCES, StorageDenied, "no right"),
        (errno.EIO, StorageUnavailable, "error"),
        (errno.ESTALE, StorageUnavailable, "tale"),
    ],
)
def test_a_disk_that_refuses_leaves_the_old_object_and_nothing_else(
    store: FolderStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[ImagefleetError],
    says: str,
) -> None:
    store.put(KEY, b"old", "image/png")

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(kind, match=says):
        store.put(KEY, b"new", "image/png")
    monkeypatch.undo()
    assert store.get(KEY) == b"old"
    assert [path.name for path in files_below(tmp_path)] == ["0.png"]


def test_a_reader_beside_writers_sees_only_whole_objects(store: FolderStore) -> None:
    versions = [bytes([number]) * 100_000 for number in range(20)]
    store.put(KEY, versions[0], "image/png")

    def read(_: int) -> bytes:
        return store.get(KEY)

    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(store.put, KEY, version, "image/png") for version in versions]
        seen = list(pool.map(read, range(50)))
        for write in writes:
            write.result()
    assert set(seen) <= set(versions)


def test_a_part_left_by_a_killed_writer_is_no_object(store: FolderStore, tmp_path: Path) -> None:
    store.put(KEY, b"x", "image/png")
    (tmp_path / "pictures/jobs/a/.1.png.0123").write_bytes(b"half")
    assert list(store.list()) == [KEY]


def test_a_file_in_the_place_of_the_folder_is_said_at_the_check(tmp_path: Path) -> None:
    (tmp_path / "pictures").write_text("not a folder")
    with pytest.raises(StorageDenied, match="a file stands where a folder is needed"):
        FolderStore(tmp_path / "pictures").check()


def test_a_folder_without_rights_is_said_at_the_check() -> None:
    with pytest.raises(StorageDenied, match=r"/sys/pictures.*(no right|read-only)"):
        FolderStore(Path("/sys/pictures")).check()


def test_pictures_may_be_read_by_whom_the_umask_allows(store: FolderStore, tmp_path: Path) -> None:
    with _umask(0o022):
        store.put(KEY, b"x", "image/png")
    assert (tmp_path / "pictures" / KEY).stat().st_mode & 0o777 == 0o644


def test_a_folder_goes_with_its_last_object_and_the_root_stays(
    store: FolderStore, tmp_path: Path
) -> None:
    for key in ("parts/0/a/1.tar", "parts/0/a/2.tar", "parts/1/b.tar"):
        store.put(key, b"x", "application/x-tar")
    store.delete("parts/0/a/1.tar")
    assert store.exists("parts/0/a/2.tar")
    store.delete("parts/0/a/2.tar")
    assert [path.name for path in (tmp_path / "pictures/parts").iterdir()] == ["1"]
    store.delete("parts/1/b.tar")
    assert list((tmp_path / "pictures").iterdir()) == []


def test_what_killed_writers_left_goes_with_its_folder(store: FolderStore, tmp_path: Path) -> None:
    store.put("parts/0/a/1.tar", b"x", "application/x-tar")
    (tmp_path / "pictures/parts/0/a/.2.tar.killed").touch()
    store.delete_below("parts/0")
    assert list((tmp_path / "pictures").iterdir()) == []


def test_what_cannot_be_listed_does_not_look_empty(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(KEY, b"x", "image/png")
    assert list(store.list("nothing/here/")) == []
    with pytest.raises(StorageDenied, match="a file stands where a folder is needed"):
        list(store.list(f"{KEY}/"))

    def refuse(path: str) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageDenied, match="no right"):
        list(store.list("jobs/"))


def test_objects_are_stored_beside_those_who_delete_the_last_one(store: FolderStore) -> None:
    def come_and_go(number: int) -> list[bytes]:
        found = []
        for turn in range(50):
            key, data = f"parts/{number % 2}/{number}.tar", b"%d" % turn
            store.put(key, data, "application/x-tar")
            found.append(store.get(key))
            store.delete(key)
        return found

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(come_and_go, range(4)):
            assert found == [b"%d" % turn for turn in range(50)]
    assert list(store.list()) == []


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
