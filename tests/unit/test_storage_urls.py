"""A storage URL selects a store, or is refused with the correct form."""

import sys
import tomllib
from pathlib import Path

import pytest

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.storage import open_store
from imagefleet.shared.storage.folder import FolderStore
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.shared.storage.schemes import Place, scheme_of, schemes_at


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("file:///srv/images", "file:///srv/images/"),
        ("file://localhost/srv/images", "file:///srv/images/"),
        ("file:///srv/my%20images", "file:///srv/my%20images/"),
        ("file://./out", f"{(Path.cwd() / 'out').as_uri()}/"),
    ],
)
def test_a_file_url_selects_a_folder(url: str, folder: str) -> None:
    store = open_store(url)
    assert isinstance(store, FolderStore)
    assert store.url == folder


def test_every_memory_store_is_new() -> None:
    first, second = open_store("memory://"), open_store("memory://")
    assert isinstance(first, MemoryStore)
    first.put("a", b"x", "text/plain")
    assert not second.exists("a")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", "must be file:///folder"),
        ("/srv/images", "must be file:///folder, .*; write file:///srv/images for this folder"),
        ("./my images", "must be file:///folder, .*; write file://./my%20images for this folder"),
        (
            "az://bucket",
            "must be file:///folder, file://./folder, s3://bucket/prefix or gs://bucket/prefix$",
        ),
        ("memory://x", "must be file:///folder"),
        ("gs://", "must be gs://bucket/prefix"),
        ("gs://bucket/a?endpoint_url=http://x", "without options"),
        ("gs://key:secret@bucket/prefix", "without options and credentials"),
        ("file://out", "write file://./out"),
        ("file://server/share", "names a host"),
        ("s3://", "must be s3://bucket/prefix"),
        ("s3://key:secret@bucket/prefix", "without credentials"),
        ("s3://bucket/a?endpoint=http://x", "no option endpoint"),
    ],
)
def test_other_urls_are_refused_with_the_correct_form(url: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_without_boto3_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "imagefleet.shared.storage.s3", raising=False)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigurationError, match=r"install imagefleet with its extra.*\[images\]"):
        open_store("s3://bucket")


def test_without_google_cloud_storage_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "imagefleet.shared.storage.gcs", raising=False)
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    with pytest.raises(ConfigurationError, match=r"install imagefleet with its extra.*\[gcs\]"):
        open_store("gs://bucket")


def test_the_extra_of_a_scheme_installs_its_client() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for scheme in schemes_at(*Place):
        installed = project["optional-dependencies"].get(scheme.extra, [])
        assert not scheme.client or any(each.startswith(scheme.client) for each in installed)


def test_every_example_of_a_scheme_is_an_address_of_it() -> None:
    for scheme in schemes_at(*Place):
        assert all(scheme_of(example) is scheme for example in scheme.examples)
        assert bool(scheme.examples) == (scheme.place is not Place.PROCESS)
