"""Faults of Google Cloud Storage: each is either retried or reported with what to correct."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import _exponential_backoff
from google.auth.compute_engine import _metadata
from google.auth.exceptions import RefreshError

from imagefleet.shared.errors import (
    ConfigurationError,
    ImagefleetError,
    InvalidRequest,
    StorageDenied,
    StorageUnavailable,
)
from imagefleet.shared.storage import open_store
from imagefleet.shared.storage.gcs import GcsStore
from tests.support.gcs import BUCKET, LocalGcs, local_gcs
from tests.support.s3 import Fault, FaultyS3, hang_up, lose_first_answer, truncate

EMULATOR = "STORAGE_EMULATOR_HOST"


@pytest.fixture(scope="module")
def server() -> Iterator[LocalGcs]:
    with local_gcs() as server:
        yield server


@pytest.fixture
def faulty() -> Iterator[FaultyS3]:
    with FaultyS3() as faulty:  # it reacts to requests of any protocol
        yield faulty


@pytest.fixture
def store(faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> GcsStore:
    monkeypatch.setenv(EMULATOR, faulty.endpoint_url)
    return GcsStore(BUCKET, retry_s=0)


def _answer(status: int, document: object, **headers: str) -> Fault:
    """Return a fault that answers with this status and JSON."""

    def fault(handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        text = json.dumps(document).encode()
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    return fault


def _error(status: int, message: str = "no") -> Fault:
    return _answer(status, {"error": {"code": status, "message": message}})


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (_error(500), StorageUnavailable),
        (_error(502), StorageUnavailable),
        (_error(503), StorageUnavailable),
        (_error(429), StorageUnavailable),
        (_error(408), StorageUnavailable),
        (_error(412), StorageUnavailable),
        (_error(400), StorageDenied),
        (_error(403), StorageDenied),
        (_error(404), StorageDenied),
        (_error(418), StorageDenied),
        (hang_up, StorageUnavailable),
    ],
)
def test_every_error_answer_is_either_unavailable_or_denied(
    faulty: FaultyS3, store: GcsStore, fault: Fault, kind: type[ImagefleetError]
) -> None:
    faulty.fault = fault
    with pytest.raises(kind):
        store.put("a", b"x", "image/png")
    with pytest.raises(kind):
        list(store.list())


def test_a_missing_permission_is_named(faulty: FaultyS3, store: GcsStore) -> None:
    faulty.fault = _error(403)
    with pytest.raises(StorageDenied, match=r"lack the permission storage\.objects\.create"):
        store.put("a", b"x", "image/png")
    with pytest.raises(StorageDenied, match=r"lack the permission storage\.objects\.list"):
        list(store.list())


def test_a_missing_bucket_is_denied(
    server: LocalGcs, faulty: FaultyS3, store: GcsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty.fault = _error(404, "The specified bucket does not exist.")
    for read in (store.get, store.delete):
        with pytest.raises(StorageDenied, match="there is no such bucket"):
            read("a")
    monkeypatch.setenv(EMULATOR, server.endpoint_url)
    with pytest.raises(StorageDenied, match="there is no such bucket"):
        open_store("gs://nothing/x").check()


def test_an_unreachable_server_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # it does not listen
        monkeypatch.setenv(EMULATOR, f"http://127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(StorageUnavailable, match="Connection refused"):
            GcsStore(BUCKET, retry_s=0.3).check()


def test_a_server_that_does_not_answer_is_unavailable_after_the_timeout(
    faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EMULATOR, faulty.endpoint_url)
    store, released = GcsStore(BUCKET, timeout_s=0.5, retry_s=0), threading.Event()

    def hang(handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        released.wait(300)
        handler.close_connection = True

    faulty.fault = hang
    try:
        with pytest.raises(StorageUnavailable, match="timed out"):
            store.put("a", b"x", "image/png")
    finally:
        released.set()


def test_a_truncated_object_is_not_returned(faulty: FaultyS3, store: GcsStore) -> None:
    faulty.fault = truncate
    with pytest.raises(StorageUnavailable):
        store.get("a")


def test_an_object_that_is_missing_or_damaged_on_its_way_is_not_returned(
    faulty: FaultyS3, store: GcsStore
) -> None:
    for status, kind in ((503, StorageUnavailable), (403, StorageDenied), (404, KeyError)):
        faulty.fault = _error(status)
        with pytest.raises(kind):
            store.get("a")
    faulty.fault = _answer(200, {}, X_Goog_Hash="crc32c=AAAAAA==")
    with pytest.raises(StorageUnavailable, match="hecksum"):
        store.get("a")


def test_nothing_is_read_of_an_object_that_is_too_large(faulty: FaultyS3, store: GcsStore) -> None:
    asked = []

    def large(handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        asked.append(handler.path)
        _answer(200, {"name": "a", "size": "1000", "generation": "1"})(handler, body, number)

    faulty.fault = large
    with pytest.raises(InvalidRequest, match="has 1,000 bytes; must be at most 999 bytes"):
        store.get("a", max_bytes=999)
    assert len(asked) == 1
    assert "alt=media" not in asked[0]


def test_a_put_whose_answer_was_lost_is_retried_and_stored_once(
    server: LocalGcs, faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty.fault = lose_first_answer(server.endpoint_url)
    monkeypatch.setenv(EMULATOR, faulty.endpoint_url)
    GcsStore(BUCKET).put("lost/0.png", b"image", "image/png")
    monkeypatch.setenv(EMULATOR, server.endpoint_url)
    store = GcsStore(BUCKET)
    assert list(store.list("lost/")) == ["lost/0.png"]
    assert store.get("lost/0.png") == b"image"


def test_every_put_sends_a_checksum_of_its_data(faulty: FaultyS3, store: GcsStore) -> None:
    bodies = []

    def record(handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        if handler.command == "POST":  # a poll of another process may have found this port
            bodies.append(body)
        _answer(200, {"name": "a"})(handler, body, number)

    faulty.fault = record
    store.put("a", b"123456789", "image/png")
    assert b'"crc32c": "4waSgw=="' in bodies[0]  # the check value of CRC-32C, E3069283


def test_missing_credentials_are_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(EMULATOR, raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nothing.json"))
    with pytest.raises(ConfigurationError, match="GOOGLE_APPLICATION_CREDENTIALS to a key file"):
        open_store("gs://images/x")


@pytest.fixture
def key_file(faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The key of a service account, whose tokens come from `faulty`."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    document = {
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "client_email": "worker@p.iam.gserviceaccount.com",
        "token_uri": f"{faulty.endpoint_url}/token",
    }
    (tmp_path / "key.json").write_text(json.dumps(document))
    monkeypatch.delenv(EMULATOR, raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))


@pytest.mark.usefixtures("key_file")
def test_refused_credentials_are_denied_with_the_reason(faulty: FaultyS3) -> None:
    store = GcsStore(BUCKET, retry_s=0)
    faulty.fault = _answer(400, {"error": "invalid_grant", "error_description": "revoked"})
    with pytest.raises(StorageDenied, match=r"the credentials are refused: .*invalid_grant"):
        store.get("a")


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library does not wait between its tries to get a token."""
    monkeypatch.setattr(_exponential_backoff, "time", SimpleNamespace(sleep=lambda seconds: None))


@pytest.mark.usefixtures("key_file", "quick_retries")
def test_a_server_of_tokens_that_fails_is_unavailable(faulty: FaultyS3) -> None:
    store = GcsStore(BUCKET, retry_s=0)
    faulty.fault = _answer(503, {"error": "internal_failure"})
    with pytest.raises(StorageUnavailable, match="no token") as caught:
        store.get("a")
    assert isinstance(caught.value.__cause__, RefreshError)


@pytest.mark.usefixtures("quick_retries")
def test_a_metadata_server_that_is_away_is_unavailable(
    faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = urlsplit(faulty.endpoint_url).netloc
    for name in (EMULATOR, "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))  # no credentials of the developer
    monkeypatch.setenv("GCE_METADATA_IP", host)
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", host)
    faulty.fault = _answer(200, {}, Metadata_Flavor="Google")
    store = GcsStore(BUCKET, retry_s=0)
    faulty.fault = hang_up
    with pytest.raises(StorageUnavailable, match="no token") as caught:
        store.get("a")
    assert isinstance(caught.value.__cause__, RefreshError)


@pytest.mark.usefixtures("key_file")
def test_a_key_file_signs_addresses() -> None:
    url = urlsplit(GcsStore(BUCKET, "run-1").presigned_url("jobs/a/0.png", 60))
    assert (url.scheme, url.path) == ("https", f"/{BUCKET}/run-1/jobs/a/0.png")
    query = parse_qs(url.query)
    assert query["X-Goog-Expires"] == ["60"]
    assert len(query["X-Goog-Signature"][0]) == 512
    with pytest.raises(InvalidRequest, match="from 1 to 604,800"):
        GcsStore(BUCKET).presigned_url("a", 604_801)


def test_without_a_private_key_nothing_is_signed(store: GcsStore) -> None:
    with pytest.raises(ConfigurationError, match="these credentials have no private key"):
        store.presigned_url("a", 60)
