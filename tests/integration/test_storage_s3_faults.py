"""What an S3 server can do to us, and what we make of it: try again, or say what is wrong."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from imagefleet.shared.errors import (
    ConfigurationError,
    ImagefleetError,
    StorageDenied,
    StorageUnavailable,
)
from imagefleet.shared.storage.s3 import S3Store
from tests.support.s3 import (
    BUCKET,
    FaultyS3,
    Misdeed,
    SignedS3,
    accept,
    error,
    hang_up,
    lose_first_answer,
    signed_s3,
    truncate,
)


@pytest.fixture(scope="module")
def server() -> Iterator[SignedS3]:
    with signed_s3() as server:
        yield server


@pytest.fixture(autouse=True)
def credentials(server: SignedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.credentials.environment().items():
        monkeypatch.setenv(name, value)


def _hurried(
    endpoint_url: str, bucket: str = BUCKET, attempts: int = 1, timeout_s: float = 60.0
) -> S3Store:
    return S3Store(bucket, endpoint_url=endpoint_url, timeout_s=timeout_s, attempts=attempts)


@pytest.fixture(scope="module")
def faulty() -> Iterator[FaultyS3]:
    with FaultyS3() as faulty:
        yield faulty


@pytest.fixture(scope="module")
def store(server: SignedS3, faulty: FaultyS3) -> S3Store:
    """One that does not try twice. Making a client takes most of a second."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.credentials.environment().items():
            patch.setenv(name, value)
        return _hurried(faulty.endpoint_url)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong", "the secret key is wrong"),
        ("AWS_ACCESS_KEY_ID", "AKIAWRONG", "the access key is unknown"),
    ],
)
def test_wrong_credentials_are_denied_with_the_variable_to_correct(
    server: SignedS3, monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(StorageDenied, match=says) as denied:
        _hurried(server.endpoint_url).check()
    assert server.credentials.secret not in str(denied.value)


def test_no_credentials_at_all_are_a_setting_to_make(
    server: SignedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigurationError, match="set AWS_ACCESS_KEY_ID"):
        _hurried(server.endpoint_url).check()


def test_a_missing_bucket_is_denied(server: SignedS3) -> None:
    with pytest.raises(StorageDenied, match="there is no such bucket"):
        _hurried(server.endpoint_url, bucket="no-such-bucket").check()


@pytest.mark.parametrize("bucket", ["No", "a/b", "x" * 64])
def test_a_name_that_no_bucket_can_have_is_said(server: SignedS3, bucket: str) -> None:
    with pytest.raises((ConfigurationError, StorageDenied)):
        _hurried(server.endpoint_url, bucket=bucket).check()


def test_an_endpoint_that_is_no_url_is_a_setting_to_correct() -> None:
    with pytest.raises(ConfigurationError, match="Invalid endpoint"):
        _hurried("storage:8333")


def test_a_server_that_is_not_there_may_come_back() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        port = nobody.getsockname()[1]
        with pytest.raises(StorageUnavailable, match="Could not connect"):
            _hurried(f"http://127.0.0.1:{port}").check()


@pytest.mark.parametrize(
    ("misdeed", "kind"),
    [
        (error(500, "InternalError"), StorageUnavailable),
        (error(503, "SlowDown"), StorageUnavailable),
        (error(429, "TooManyRequests"), StorageUnavailable),
        (error(400, "RequestTimeout"), StorageUnavailable),
        (error(400, "BadDigest"), StorageUnavailable),
        (error(507, "InsufficientStorage"), StorageDenied),
        (error(403, "AccessDenied"), StorageDenied),
        (error(403, "RequestTimeTooSkewed"), StorageDenied),
        (error(400, "ExpiredToken"), StorageDenied),
        (error(418, "Teapot"), StorageDenied),
        (hang_up, StorageUnavailable),
    ],
)
def test_every_answer_to_a_put_is_either_to_be_repeated_or_not(
    faulty: FaultyS3, store: S3Store, misdeed: Misdeed, kind: type[ImagefleetError]
) -> None:
    faulty.misdeed = misdeed
    with pytest.raises(kind):
        store.put("a", b"x", "image/png")


def test_a_server_that_never_answers_is_given_up_on(faulty: FaultyS3) -> None:
    store, over = _hurried(faulty.endpoint_url, timeout_s=0.5), threading.Event()

    def hang(door: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        over.wait(60)
        door.close_connection = True

    faulty.misdeed = hang
    try:
        with pytest.raises(StorageUnavailable, match="timeout"):
            store.put("a", b"x", "image/png")
    finally:
        over.set()


def test_an_object_that_arrives_in_part_is_not_returned(faulty: FaultyS3, store: S3Store) -> None:
    faulty.misdeed = truncate
    with pytest.raises(StorageUnavailable):
        store.get("a")


def test_a_put_whose_answer_was_lost_is_repeated_and_stands_once(
    server: SignedS3, faulty: FaultyS3
) -> None:
    faulty.misdeed = lose_first_answer(server.endpoint_url)
    store = _hurried(faulty.endpoint_url, attempts=2)
    store.put("lost/0.png", b"picture", "image/png")
    assert list(store.list("lost/")) == ["lost/0.png"]
    assert store.get("lost/0.png") == b"picture"


def test_every_put_carries_the_digest_of_what_it_means(faulty: FaultyS3, store: S3Store) -> None:
    seen: list[str | None] = []

    def note(door: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        seen.append(door.headers["x-amz-checksum-sha256"])
        accept(door, body, number)

    faulty.misdeed = note
    store.put("a", b"imagefleet", "image/png")
    assert seen == ["+DOjzAIW9sKfbe5JOMASuIBA0BkMW75XGK812om3ne4="]
