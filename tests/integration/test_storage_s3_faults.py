"""Faults of an S3 server: each is either retried or reported with the setting to correct."""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

import pytest

from imagefleet.shared.errors import (
    ConfigurationError,
    ImagefleetError,
    InvalidRequest,
    StorageDenied,
    StorageUnavailable,
)
from imagefleet.shared.storage.s3 import S3Store
from tests.support.s3 import (
    BUCKET,
    Fault,
    FaultyS3,
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


def _open_store(
    endpoint_url: str, bucket: str = BUCKET, attempts: int = 1, timeout_s: float = 60.0
) -> S3Store:
    return S3Store(bucket, endpoint_url=endpoint_url, timeout_s=timeout_s, attempts=attempts)


@pytest.fixture(scope="module")
def faulty() -> Iterator[FaultyS3]:
    with FaultyS3() as faulty:
        yield faulty


@pytest.fixture(scope="module")
def store(server: SignedS3, faulty: FaultyS3) -> S3Store:
    """A store without retries, shared by the tests because creating a client takes almost 1 s."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.credentials.environment().items():
            patch.setenv(name, value)
        return _open_store(faulty.endpoint_url)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong", "the secret key is wrong"),
        ("AWS_ACCESS_KEY_ID", "AKIAWRONG", "does not know the access key"),
    ],
)
def test_wrong_credentials_are_denied_with_the_reason(
    server: SignedS3, monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(StorageDenied, match=sentence) as denied:
        _open_store(server.endpoint_url).check()
    assert server.credentials.secret not in str(denied.value)


def test_missing_credentials_are_a_configuration_error(
    server: SignedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigurationError, match="set AWS_ACCESS_KEY_ID"):
        _open_store(server.endpoint_url).check()


def test_a_missing_bucket_is_denied(server: SignedS3) -> None:
    with pytest.raises(StorageDenied, match="there is no such bucket"):
        _open_store(server.endpoint_url, bucket="no-such-bucket").check()


@pytest.mark.parametrize("bucket", ["No", "a/b", "x" * 64])
def test_an_invalid_bucket_name_is_reported(server: SignedS3, bucket: str) -> None:
    with pytest.raises((ConfigurationError, StorageDenied)):
        _open_store(server.endpoint_url, bucket=bucket).check()


def test_an_invalid_endpoint_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="Invalid endpoint"):
        _open_store("storage:8333")


def test_an_unreachable_server_is_unavailable() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # it does not listen
        port = bound.getsockname()[1]
        with pytest.raises(StorageUnavailable, match="Could not connect"):
            _open_store(f"http://127.0.0.1:{port}").check()


@pytest.mark.parametrize(
    ("fault", "kind"),
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
def test_every_error_answer_is_either_unavailable_or_denied(
    faulty: FaultyS3, store: S3Store, fault: Fault, kind: type[ImagefleetError]
) -> None:
    faulty.fault = fault
    with pytest.raises(kind):
        store.put("a", b"x", "image/png")


def test_a_server_that_does_not_answer_is_unavailable_after_the_timeout(faulty: FaultyS3) -> None:
    store, released = _open_store(faulty.endpoint_url, timeout_s=0.5), threading.Event()

    def hang(handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        released.wait(300)
        handler.close_connection = True

    faulty.fault = hang
    try:
        with pytest.raises(StorageUnavailable, match="timeout"):
            store.put("a", b"x", "image/png")
    finally:
        released.set()


def test_a_truncated_object_is_not_returned(faulty: FaultyS3, store: S3Store) -> None:
    faulty.fault = truncate
    with pytest.raises(StorageUnavailable):
        store.get("a")


def test_nothing_is_read_of_an_object_that_announces_too_many_bytes(
    faulty: FaultyS3, store: S3Store
) -> None:
    faulty.fault = truncate  # announces 1000 bytes, and would be unavailable if it were read
    with pytest.raises(InvalidRequest, match="has 1,000 bytes; must be at most 999 bytes"):
        store.get("a", max_bytes=999)


def test_an_object_without_an_announced_size_is_read_up_to_the_limit(
    faulty: FaultyS3, store: S3Store
) -> None:
    def endless(handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        handler.send_response(200)
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        handler.close_connection = True
        with suppress(OSError):  # the reader hangs up
            while True:
                handler.wfile.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")

    faulty.fault = endless
    with pytest.raises(InvalidRequest, match="must be at most 999 bytes"):
        store.get("a", max_bytes=999)


def test_a_put_whose_answer_was_lost_is_retried_and_stored_once(
    server: SignedS3, faulty: FaultyS3
) -> None:
    faulty.fault = lose_first_answer(server.endpoint_url)
    store = _open_store(faulty.endpoint_url, attempts=2)
    store.put("lost/0.png", b"image", "image/png")
    assert list(store.list("lost/")) == ["lost/0.png"]
    assert store.get("lost/0.png") == b"image"


def test_every_put_sends_the_digest_of_its_data(faulty: FaultyS3, store: S3Store) -> None:
    digests: list[str | None] = []

    def record(handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        if handler.command == "PUT":  # a poll of another process may have found this port
            digests.append(handler.headers["x-amz-checksum-sha256"])
        accept(handler, body, number)

    faulty.fault = record
    store.put("a", b"imagefleet", "image/png")
    assert digests == ["+DOjzAIW9sKfbe5JOMASuIBA0BkMW75XGK812om3ne4="]


_ADDRESS = {"location": "http://elsewhere.invalid/"}
_REGION = {"x-amz-bucket-region": "eu-west-9"}


def _answer(status: int, headers: Mapping[str, str], text: bytes = b"") -> Fault:
    """Return a fault that answers each request like this, as a proxy or another server does."""

    def fault(handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        handler.send_response(status)
        for name, value in {**headers, "content-length": str(len(text))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(text)

    return fault


_PAGE = b"<html><body>Please log in</body></html>"
ODD_ANSWERS = {
    "301 without a region": (_answer(301, {}), "answers 301 and names no address"),
    "301 with an address": (_answer(301, _ADDRESS), "answers 301 and names http://elsewhere"),
    "301 with a region": (_answer(301, _REGION), "answers 301 and names region eu-west-9"),
    "302": (_answer(302, _ADDRESS, _PAGE), "answers 302 and names http://elsewhere"),
    "307": (_answer(307, _ADDRESS), "answers 307 and names http://elsewhere"),
    "400 with a region": (_answer(400, _REGION), "answers 400"),
    "a page": (_answer(503, {"content-type": "text/html"}, _PAGE), "answers 503"),
}
"""Answers of servers that are not the bucket's, and what an error says of them."""


@pytest.mark.parametrize("kind", ODD_ANSWERS)
def test_the_answer_of_another_server_is_one_sentence(
    store: S3Store, faulty: FaultyS3, kind: str
) -> None:
    faulty.fault, sentence = ODD_ANSWERS[kind]
    for use in (
        lambda: store.put("a", b"x", "text/plain"),
        lambda: store.get("a", 10),
        lambda: store.exists("a"),
        lambda: list(store.list("a")),
        store.check,
    ):
        with pytest.raises(ImagefleetError, match=sentence) as told:
            use()
        assert len(str(told.value).splitlines()) == 1


def test_a_page_in_place_of_a_list_is_one_sentence(store: S3Store, faulty: FaultyS3) -> None:
    faulty.fault = _answer(200, {}, _PAGE)
    with pytest.raises(StorageUnavailable, match="does not return what was just written"):
        store.check()
