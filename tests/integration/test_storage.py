"""The same tests for every object store: memory, folder, S3 with checked signatures, and GCS."""

import hashlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage import ObjectStore, open_store, s3
from tests.support.gcs import local_gcs
from tests.support.s3 import signed_s3

KEY = "jobs/cat-1/0.png"


@pytest.fixture(scope="module")
def s3_stores() -> Iterator[dict[str, ObjectStore]]:
    with signed_s3() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.credentials.environment().items():
            patch.setenv(name, value)
        yield {
            "s3": open_store(server.url()),
            "s3 with prefix": open_store(server.url("some/prefix")),
        }


@pytest.fixture(scope="module")
def gcs_stores() -> Iterator[dict[str, ObjectStore]]:
    with local_gcs() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        yield {
            "gcs": open_store(server.url()),
            "gcs with prefix": open_store(server.url("some/prefix")),
        }


@pytest.fixture(params=["memory", "folder", "s3", "s3 with prefix", "gcs", "gcs with prefix"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return open_store("memory://")
    if request.param == "folder":
        return open_store(tmp_path.as_uri())
    fixture = f"{request.param.partition(' ')[0]}_stores"
    stores: dict[str, ObjectStore] = request.getfixturevalue(fixture)
    store = stores[request.param]
    for key in list(store.list()):
        store.delete(key)
    return store


def test_an_object_is_read_as_it_was_put(store: ObjectStore) -> None:
    data = bytes(range(256)) * 300
    stored = store.put(KEY, data, "image/png")
    assert store.get(KEY) == data
    assert stored.key == KEY
    assert stored.url == store.url + KEY
    assert stored.sha256 == hashlib.sha256(data).hexdigest()
    assert stored.size == len(data)


def test_a_file_is_stored_from_its_beginning_wherever_it_is_positioned(
    store: ObjectStore, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 9_000
    (tmp_path / "large").write_bytes(data)
    with (tmp_path / "large").open("rb") as file:
        file.seek(100)
        description = store.put_file(KEY, file, "application/x-tar")
    assert store.get(KEY) == data
    assert (description.key, description.url, description.size) == (KEY, store.url + KEY, len(data))
    assert description.sha256 == hashlib.sha256(data).hexdigest()


def test_an_object_is_read_into_a_file_and_in_ranges(store: ObjectStore, tmp_path: Path) -> None:
    data = bytes(range(256)) * 9_000
    store.put(KEY, data, "image/png")
    with (tmp_path / "copy").open("w+b") as file:
        store.get_file(KEY, file)
    assert (tmp_path / "copy").read_bytes() == data
    assert store.get_range(KEY, 0, 512) == data[:512]
    assert store.get_range(KEY, len(data) - 3, 100) == data[-3:]
    for read in (lambda: store.get_range("no/such", 0, 1), lambda: store.get_file("no/such", file)):
        with pytest.raises(KeyError):
            read()


def test_an_object_may_be_empty(store: ObjectStore) -> None:
    store.put(KEY, b"", "image/png")
    assert store.get(KEY) == b""


def test_a_second_put_replaces_the_first(store: ObjectStore) -> None:
    store.put(KEY, b"first", "image/png")
    store.put(KEY, b"second", "image/png")
    assert store.get(KEY) == b"second"
    assert list(store.list()) == [KEY]


def test_reading_a_missing_object_is_a_key_error(store: ObjectStore) -> None:
    with pytest.raises(KeyError):
        store.get(KEY)
    assert not store.exists(KEY)


def test_an_object_larger_than_the_limit_is_refused_with_its_size(store: ObjectStore) -> None:
    store.put(KEY, b"x" * 100_000, "image/png")
    assert len(store.get(KEY, max_bytes=100_000)) == 100_000
    with pytest.raises(InvalidRequest, match="has 100,000 bytes; must be at most 99,999 bytes"):
        store.get(KEY, max_bytes=99_999)


@pytest.mark.parametrize("key", ["jobs", "jobs/cat-1", f"{KEY}/below", "a" * 300])
def test_a_key_that_can_name_no_object_is_read_as_a_missing_one(
    store: ObjectStore, key: str
) -> None:
    store.put(KEY, b"x", "image/png")
    assert not store.exists(key)
    with pytest.raises(KeyError):
        store.get(key)


def test_delete_below_deletes_a_folder_and_nothing_else(store: ObjectStore) -> None:
    for key in ("parts/1/a/0.tar", "parts/1/0.tar", "parts/10/0.tar", "parts/1.tar"):
        store.put(key, b"x", "application/x-tar")
    store.delete_below("parts/1")
    assert sorted(store.list()) == ["parts/1.tar", "parts/10/0.tar"]
    store.delete_below("parts/1")
    store.delete_below("never/was")


def test_a_stored_object_exists_until_it_is_deleted(store: ObjectStore) -> None:
    store.put(KEY, b"x", "image/png")
    assert store.exists(KEY)
    store.delete(KEY)
    assert not store.exists(KEY)


def test_deleting_a_missing_object_is_no_error(store: ObjectStore) -> None:
    store.delete(KEY)


def test_a_listing_has_exactly_the_keys_with_the_prefix(store: ObjectStore) -> None:
    keys = ["jobs/a/0.json", "jobs/a/0.png", "jobs/ab/0.png", "jobs/b/0.png"]
    for key in keys:
        store.put(key, b"x", "image/png")
    assert sorted(store.list()) == keys
    assert sorted(store.list("jobs/a/")) == keys[:2]
    assert sorted(store.list("jobs/a")) == keys[:3]
    assert list(store.list("jobs/c/")) == []


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../x", "jobs/../../x", "jobs//x", ".hidden", "a/.b", "a b", "a\n"]
)
def test_a_key_that_could_point_outside_the_root_is_refused(store: ObjectStore, key: str) -> None:
    with pytest.raises(InvalidRequest):
        store.put(key, b"x", "image/png")
    with pytest.raises(InvalidRequest):
        store.get(key)


def test_the_check_passes_and_leaves_no_object(store: ObjectStore) -> None:
    store.check()
    assert list(store.list()) == []


def test_a_large_file_is_uploaded_in_parts(
    s3_stores: dict[str, ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_MAX_PUT_BYTES", 6 << 20)
    monkeypatch.setattr(s3, "_PART_BYTES", 5 << 20)  # the least that S3 takes
    data = hashlib.sha256(b"").digest() * (11 << 15)
    store = s3_stores["s3 with prefix"]
    stored = store.put_file("large.tar", BytesIO(data), "application/x-tar")
    assert (stored.size, stored.sha256) == (11 << 20, hashlib.sha256(data).hexdigest())
    assert store.get("large.tar") == data
    store.delete("large.tar")
