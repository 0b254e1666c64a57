"""A Hugging Face Hub over real HTTP that serves a folder as its only repository."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from unittest import mock

from imagefleet.producer.demo.local_http import LocalServer
from tests.support.files import files_below

COMMIT = "0" * 40
TAG = "v1"
"""A revision of the repository beside `main` and its commit."""
_FILE_URL = "/{repo_id}/resolve/{revision}/{filename}"


@contextmanager
def serve_repository(repository: str, folder: Path, cache: Path) -> Iterator[list[str]]:
    """Let `huggingface_hub` in this process use a local server.

    Yield a list that receives the name of each file as it is downloaded.
    """
    fetched: list[str] = []
    with LocalServer(_handler(_Repository(repository, folder), fetched)) as server:
        url = f"http://127.0.0.1:{server.port}"
        with (
            mock.patch("huggingface_hub.constants.ENDPOINT", url),
            mock.patch("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url + _FILE_URL),
            mock.patch("huggingface_hub.constants.HF_HUB_CACHE", str(cache)),
        ):
            yield fetched


class _Repository:
    """The documents and files of one repository, by the path of their URL."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder
        self._files = [path.relative_to(folder).as_posix() for path in files_below(folder)]

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Return the content behind a path with its type, or None."""
        if path.startswith(f"/api/models/{self._name}/tree/"):
            tree = [{"type": "file", "path": name, "size": 1, "oid": "0"} for name in self._files]
            return json.dumps(tree).encode(), "application/json"
        about = f"/api/models/{self._name}"
        if path in (about, *(f"{about}/revision/{name}" for name in ("main", TAG, COMMIT))):
            return json.dumps({"id": self._name, "sha": COMMIT}).encode(), "application/json"
        if (name := self.file(path)) is None:
            return None
        return (self._folder / name).read_bytes(), "application/octet-stream"

    def file(self, path: str) -> str | None:
        """Return the name of the file that a download path asks for, or None."""
        name = path.removeprefix(f"/{self._name}/resolve/{COMMIT}/")
        return name if name in self._files else None


def _handler(repository: _Repository, fetched: list[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._respond()

        def do_GET(self) -> None:
            if (name := repository.file(self._path)) is not None:
                fetched.append(name)
            self.wfile.write(self._respond())

        def log_message(self, *_: object) -> None:
            return None

        @property
        def _path(self) -> str:
            return self.path.partition("?")[0]

        def _respond(self) -> bytes:
            if (content := repository.read(self._path)) is None:
                self.send_error(404)
                return b""
            body, kind = content
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("x-repo-commit", COMMIT)
            self.end_headers()
            return body

    return Handler
