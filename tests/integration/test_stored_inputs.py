"""Inputs in buckets, whose keys and hidden objects others have named, by real servers."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import boto3
import pytest

from imagefleet.producer.bulk.inputs import find_sources
from imagefleet.shared.errors import ConfigurationError, InvalidRequest, StorageDenied
from imagefleet.shared.storage import open_store
from tests.support.gcs import local_gcs
from tests.support.s3 import BUCKET, signed_s3

STRANGE_KEYS = (
    "dt=2024-01-01/part 0.txt",
    "dt=2024-01-02/a+b:c(1)&d,e;f#g.txt",
    "äöü/日本.txt",
    "twice//a.txt",
    "/at/the/root.txt",
    "50%20%/a%2Fb.txt",
    "mail@example.org/a.txt",
    "dots/-a.txt",
    "[1]/*.txt",
)
HIDDEN_KEYS = (".hidden/a.txt", "p/.ipynb_checkpoints/a.txt", "p/._a.txt")
Put = Callable[[str], object]


@pytest.fixture(scope="module", params=["s3", "gs"])
def address(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """Return the address of a key in a bucket that holds all of the above, and p/a.txt."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "s3":
            with signed_s3() as s3:
                _put_all(patch, s3.credentials.environment(), _s3_put(patch, s3))
                yield s3.url
        else:
            with local_gcs() as gcs:
                _put_all(patch, gcs.environment(), _gcs_put(gcs.endpoint_url))
                yield gcs.url


def _put_all(patch: pytest.MonkeyPatch, environment: dict[str, str], put: Put) -> None:
    for name, value in environment.items():
        patch.setenv(name, value)
    for key in (*STRANGE_KEYS, *HIDDEN_KEYS, "p/a.txt", "p/", "p/about.json"):
        put(key)


def _s3_put(patch: pytest.MonkeyPatch, s3: Any) -> Put:
    for name, value in s3.credentials.environment().items():
        patch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=s3.endpoint_url)
    return lambda key: client.put_object(Bucket=BUCKET, Key=key, Body=key.encode())


def _gcs_put(endpoint_url: str) -> Put:
    def put(key: str) -> None:
        query = f"uploadType=media&name={quote(key, safe='')}"
        url = f"{endpoint_url}/upload/storage/v1/b/{BUCKET}/o?{query}"
        urlopen(Request(url, key.encode(), {"content-type": "text/plain"})).close()

    return put


def _prompts(url: str, input_format: str | None = None) -> list[object]:
    found: list[object] = []
    for source in find_sources(url, input_format):
        with source.open() as table:
            found += table.rows
    return found


@pytest.mark.parametrize("key", STRANGE_KEYS)
def test_an_object_is_read_whatever_others_have_named_it(
    address: Callable[[str], str], key: str
) -> None:
    folder = key.rpartition("/")[0] + "/"
    assert _prompts(address(key)) == _prompts(address(folder)) == [key]


def test_all_objects_of_a_bucket_are_read_but_the_hidden_ones(
    address: Callable[[str], str],
) -> None:
    assert _prompts(address("")) == sorted((*STRANGE_KEYS, "p/a.txt"))
    assert _prompts(address("dt=*/*.txt")) == sorted(STRANGE_KEYS[:2])


def test_json_beside_tables_is_read_only_if_a_pattern_names_it(
    address: Callable[[str], str],
) -> None:
    assert len(find_sources(address("p/"))) == 1
    assert len(find_sources(address("p/*"))) == 1
    assert len(find_sources(address("p/*.json"))) == 1


def test_hidden_objects_are_read_only_by_their_names(address: Callable[[str], str]) -> None:
    for name in ("p/", "p", "p/*.txt", "p*/*"):
        assert _prompts(address(name)) == ["p/a.txt"], name
    assert _prompts(address("p/"), "txt") == ["p/a.txt", "p/about.json"]
    assert _prompts(address("p/._*")) == ["p/._a.txt"]
    for name in (".hidden/", ".hidden/*.txt", ".h*/*.txt", ".hidden/a.txt"):
        assert _prompts(address(name)) == [".hidden/a.txt"], name


def test_an_object_that_cannot_be_read_is_named_by_its_address(
    address: Callable[[str], str],
) -> None:
    for input_format, sentence in (("json", "must be an array of rows"), ("parquet", "Parquet")):
        with pytest.raises(InvalidRequest, match=sentence) as refused:
            _prompts(address("p/a.txt"), input_format)
        assert refused.value.value == f"{address('').partition('?')[0]}p/a.txt"


def test_what_is_written_keeps_to_plain_keys(address: Callable[[str], str]) -> None:
    with pytest.raises(InvalidRequest, match="must be plain names"):
        open_store(address("")).put("a b.txt", b"", "text/plain")
    with pytest.raises(InvalidRequest, match="must be plain names"):
        open_store(address("a=b"))


def test_an_address_with_credentials_is_refused_and_does_not_show_them() -> None:
    for url in ("s3://KEY:sec/ret@b/a.txt", "s3://KEY:secret@b/a.txt", "s3://KEY:s?ecret@b/a"):
        with pytest.raises((ConfigurationError, InvalidRequest)) as refused:
            find_sources(url)
        assert "ret@" not in str(refused.value), url


def test_a_bucket_that_is_missing_is_told_without_the_name_of_a_setting(
    address: Callable[[str], str],
) -> None:
    with pytest.raises(StorageDenied, match="no such bucket") as refused:
        find_sources(address("").replace(BUCKET, "nowhere"))
    assert "IMAGEFLEET" not in str(refused.value)
