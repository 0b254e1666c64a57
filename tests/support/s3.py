"""S3 over HTTP: a server that checks signatures, and one that answers with faults."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

import boto3
from moto import settings
from moto.moto_api._internal.models import moto_api_backend
from moto.server import ThreadedMotoServer

from imagefleet.producer.demo.local_http import LocalServer

BUCKET: Final = "images"
ALL_RIGHTS: Final = ("*",)


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The credentials of a user of S3."""

    key_id: str
    secret: str

    def environment(self) -> dict[str, str]:
        """Return the variables with which boto3 uses these credentials and no others."""
        return {
            "AWS_ACCESS_KEY_ID": self.key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        }


@dataclass(frozen=True, kw_only=True)
class SignedS3:
    """A server with one bucket and one user. It refuses all other users."""

    endpoint_url: str
    credentials: Credentials

    def url(self, prefix: str = "") -> str:
        """Return the address of `prefix` in the bucket, for `open_store`."""
        return f"s3://{BUCKET}/{prefix}?endpoint_url={self.endpoint_url}"


@contextmanager
def signed_s3(rights: Sequence[str] = ALL_RIGHTS, address: str = "127.0.0.1") -> Iterator[SignedS3]:
    """Run moto with IAM enabled. Without IAM it accepts any credentials.

    Args:
        rights: what the user may do, as in `PutObject`.
        address: that of this machine at which it listens.
    """
    server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint_url = f"http://{host}:{port}"
    original = settings.INITIAL_NO_AUTH_ACTION_COUNT
    try:
        credentials = _make_user(endpoint_url, rights)
        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
        yield SignedS3(endpoint_url=endpoint_url, credentials=credentials)
    finally:
        settings.INITIAL_NO_AUTH_ACTION_COUNT = original
        server.stop()
        moto_api_backend.reset()


def _make_user(endpoint_url: str, rights: Sequence[str]) -> Credentials:
    def client(service: str) -> Any:
        return boto3.session.Session().client(
            service,
            endpoint_url=endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="setup",
            aws_secret_access_key="setup",
        )

    iam = client("iam")
    iam.create_user(UserName="worker")
    allowed = {"Effect": "Allow", "Action": [f"s3:{each}" for each in rights], "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_user_policy(UserName="worker", PolicyName="s3", PolicyDocument=policy)
    key = iam.create_access_key(UserName="worker")["AccessKey"]
    client("s3").create_bucket(Bucket=BUCKET)
    return Credentials(key_id=key["AccessKeyId"], secret=key["SecretAccessKey"])


Fault = Callable[[BaseHTTPRequestHandler, bytes, int], None]
"""A reaction to a request: takes the handler, the body and the request's number, from 1."""


def error(status: int, code: str) -> Fault:
    """Return a fault that answers with an error in the format of S3."""

    def fault(handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        text = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        handler.send_response(status)
        handler.send_header("content-type", "application/xml")
        handler.send_header("content-length", str(len(text)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(text)

    return fault


def hang_up(handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True


def truncate(handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
    """Announce 1000 bytes, send fewer and close the connection."""
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b"half of it")
    handler.close_connection = True


def lose_first_answer(upstream: str) -> Fault:
    """Return a fault that forwards every request to `upstream`, but loses the first answer."""

    def fault(handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        status, text = forward(upstream, handler, body)
        if number == 1:
            handler.close_connection = True
        else:
            reply(handler, status, text)

    return fault


def forward(upstream: str, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
    """Send the request to `upstream`. Return the status and body of the answer."""
    connection = HTTPConnection(upstream.removeprefix("http://"), timeout=30)
    connection.request(handler.command, handler.path, body, dict(handler.headers.items()))
    with connection.getresponse() as answer:
        text = answer.read()
    connection.close()
    return answer.status, text


def reply(handler: BaseHTTPRequestHandler, status: int, text: bytes) -> None:
    """Answer with this status and body."""
    handler.send_response(status)
    handler.send_header("content-length", str(len(text)))
    handler.end_headers()
    handler.wfile.write(text)


def accept(handler: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
    """Answer 200 with an empty body."""
    handler.send_response(200)
    handler.send_header("content-length", "0")
    handler.end_headers()


class FaultyS3(LocalServer):
    """A server that reacts to every request with `fault`. Assigning one restarts the count."""

    def __init__(self, fault: Fault = accept) -> None:
        self._lock = threading.Lock()
        self.fault = fault
        super().__init__(self._handler_class())

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        with self._lock:
            self._fault, self._requests = fault, 0

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _next(self) -> tuple[Fault, int]:
        with self._lock:
            self._requests += 1
            return self._fault, self._requests

    def _handler_class(self) -> type[BaseHTTPRequestHandler]:
        next_fault = self._next

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                fault, number = next_fault()
                fault(self, body, number)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                return None

        return Handler


def pass_on(store: SignedS3) -> Fault:
    """Return the fault that is none: `store` answers."""
    return lambda door, body, _: reply(door, *forward(store.endpoint_url, door, body))
