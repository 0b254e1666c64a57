"""S3 over real HTTP: a server that checks signatures, and one that misbehaves."""

import threading
from collections.abc import Callable, Iterator
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

BUCKET: Final = "pictures"
_EVERYTHING: Final = (
    '{"Version": "2012-10-17",'
    ' "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
)


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Of a user who may do everything with S3."""

    key_id: str
    secret: str

    def environment(self) -> dict[str, str]:
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
    """A server with one bucket and one user. Anyone else is refused."""

    endpoint_url: str
    credentials: Credentials

    def url(self, prefix: str = "") -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint_url={self.endpoint_url}"


@contextmanager
def signed_s3() -> Iterator[SignedS3]:
    """moto with its IAM on: without, it accepts any credentials."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint_url = f"http://{host}:{port}"
    before = settings.INITIAL_NO_AUTH_ACTION_COUNT
    try:
        credentials = _make_user(endpoint_url)
        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
        yield SignedS3(endpoint_url=endpoint_url, credentials=credentials)
    finally:
        settings.INITIAL_NO_AUTH_ACTION_COUNT = before
        server.stop()
        moto_api_backend.reset()


def _make_user(endpoint_url: str) -> Credentials:
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
    iam.put_user_policy(UserName="worker", PolicyName="s3", PolicyDocument=_EVERYTHING)
    key = iam.create_access_key(UserName="worker")["AccessKey"]
    client("s3").create_bucket(Bucket=BUCKET)
    return Credentials(key_id=key["AccessKeyId"], secret=key["SecretAccessKey"])


Misdeed = Callable[[BaseHTTPRequestHandler, bytes, int], None]
"""What to do with request number n (from 1) and its body."""


def error(status: int, code: str) -> Misdeed:
    """Answer like S3 does when it does not want to."""

    def misdeed(door: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        text = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        door.send_response(status)
        door.send_header("content-type", "application/xml")
        door.send_header("content-length", str(len(text)))
        door.end_headers()
        if door.command != "HEAD":
            door.wfile.write(text)

    return misdeed


def hang_up(door: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
    door.close_connection = True


def truncate(door: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
    door.send_response(200)
    door.send_header("content-length", "1000")
    door.end_headers()
    door.wfile.write(b"half of it")
    door.close_connection = True


def lose_first_answer(upstream: str) -> Misdeed:
    """Carry every request to `upstream`, but hang up on the first instead of answering it."""

    def misdeed(door: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        status, text = carry(upstream, door, body)
        if number == 1:
            door.close_connection = True
        else:
            reply(door, status, text)

    return misdeed


def carry(upstream: str, door: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
    """Have the request done by the server at `upstream`. Its status and its answer's body."""
    connection = HTTPConnection(upstream.removeprefix("http://"), timeout=30)
    connection.request(door.command, door.path, body, dict(door.headers.items()))
    with connection.getresponse() as answer:
        text = answer.read()
    connection.close()
    return answer.status, text


def reply(door: BaseHTTPRequestHandler, status: int, text: bytes) -> None:
    door.send_response(status)
    door.send_header("content-length", str(len(text)))
    door.end_headers()
    door.wfile.write(text)


def accept(door: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
    door.send_response(200)
    door.send_header("content-length", "0")
    door.end_headers()


class FaultyS3(LocalServer):
    """A server that does `misdeed` to every request. Assign another to start anew."""

    def __init__(self, misdeed: Misdeed = accept) -> None:
        self._lock = threading.Lock()
        self.misdeed = misdeed
        super().__init__(self._door())

    @property
    def misdeed(self) -> Misdeed:
        return self._misdeed

    @misdeed.setter
    def misdeed(self, misdeed: Misdeed) -> None:
        with self._lock:
            self._misdeed, self._requests = misdeed, 0

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _next(self) -> tuple[Misdeed, int]:
        with self._lock:
            self._requests += 1
            return self._misdeed, self._requests

    def _door(self) -> type[BaseHTTPRequestHandler]:
        next_misdeed = self._next

        class Door(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                misdeed, number = next_misdeed()
                misdeed(self, body, number)

            do_GET = do_PUT = do_HEAD = do_DELETE = answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                return None

        return Door
