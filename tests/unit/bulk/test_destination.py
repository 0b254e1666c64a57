"""The destination of a dataset is refused in a sentence that names it, and no setting."""

import sys
from pathlib import Path

import pytest

from imagefleet.producer.bulk.destination import open_destination
from imagefleet.shared.errors import InvalidRequest


@pytest.mark.parametrize(
    ("destination", "sentence"),
    [
        ("s3:/x/y", "must be s3://bucket/prefix, gs://bucket/prefix, file:///folder or a folder;"),
        ("s3://", "must be s3://bucket/prefix"),
        ("s3://b/a?endpoint=http://x", "there is no option endpoint, only endpoint_url, region"),
        ("file://server/x", "names a host; write file://./server/x for a folder here, or"),
        ("ftp://server/x", "must be file:///folder, file://./folder, s3://bucket/prefix or gs://"),
        ("memory://", "must be a store that workers can reach"),
    ],
)
def test_a_wrong_destination(destination: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        open_destination(destination)
    assert str(refused.value).startswith(f"destination={destination!r}: {sentence}")


def test_a_tilde_is_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for destination in ("~/data", Path("~/data")):
        assert open_destination(destination)[0] == f"{(tmp_path / 'data').as_uri()}/"
    with pytest.raises(InvalidRequest, match="no-such-user"):
        open_destination("~no-such-user/data")


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "imagefleet.shared.storage.s3", raising=False)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(InvalidRequest, match="destination='s3://b/x': s3:// needs boto3; install"):
        open_destination("s3://b/x")
