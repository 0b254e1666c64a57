"""A storage URL means one store, or one clear sentence."""

import sys
from pathlib import Path

import pytest

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.storage import open_store
from imagefleet.shared.storage.folder import FolderStore
from imagefleet.shared.storage.memory import MemoryStore


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("file:///srv/pictures", "file:///srv/pictures/"),
        ("file://localhost/srv/pictures", "file:///srv/pictures/"),
        ("file:///srv/my%20pictures", "file:///srv/my%20pictures/"),
        ("file://./out", f"{(Path.cwd() / 'out').as_uri()}/"),
    ],
)
def test_a_file_url_is_a_folder(url: str, folder: str) -> None:
    store = open_store(url)
    assert isinstance(store, FolderStore)
    assert store.url == folder


def test_memory_is_new_every_time() -> None:
    first, second = open_store("memory://"), open_store("memory://")
    assert isinstance(first, MemoryStore)
    first.put("a", b"x", "text/plain")
    assert not second.exists("a")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "must be file:///folder"),
        ("/srv/pictures", "must be file:///folder"),
        ("gs://bucket", "must be file:///folder"),
        ("file://out", "write file://./out"),
        ("file://server/share", "names a host"),
        ("s3://", "must be s3://bucket/prefix"),
        ("s3://key:secret@bucket/prefix", "without credentials"),
        ("s3://bucket/a?endpoint=http://x", "no option endpoint"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_s3_without_its_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "imagefleet.shared.storage.s3", raising=False)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigurationError, match=r"install imagefleet\[worker\]"):
        open_store("s3://bucket")
