"""A Hugging Face Hub over real HTTP that serves a folder as its only dataset."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from imagefleet.producer.demo.local_http import LocalServer
from tests.support.files import files_below

_COMMIT: Final = "0" * 40


@contextmanager
def serve_dataset(name: str, folder: Path, home: Path) -> Iterator[dict[str, str]]:
    """Serve `folder` as the dataset `name`. Yield the environment with which `datasets` uses it."""
    repository = _Repository(name, folder)

    class Handler(_Handler):
        def answer(self) -> _Answer:
            path = unquote(urlsplit(self.path).path)
            return repository.answer(path, self.headers.get("range", ""))

    with LocalServer(Handler) as server:
        yield {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.port}",
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }


_Answer = tuple[HTTPStatus, dict[str, str], bytes]


class _Handler(BaseHTTPRequestHandler):
    def answer(self) -> _Answer:
        raise NotImplementedError

    def do_HEAD(self) -> None:
        self._respond()

    def do_GET(self) -> None:
        self.wfile.write(self._respond())

    def log_message(self, *_: object) -> None:
        return None

    def _respond(self) -> bytes:
        status, headers, body = self.answer()
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        return body


class _Repository:
    """The documents and files of one repository, by the path of their URL."""

    def __init__(self, name: str, folder: Path) -> None:
        self._about = f"/api/datasets/{name}"
        self._download = f"/datasets/{name}/resolve/"
        self._name, self._folder = name, folder

    def answer(self, path: str, wanted: str) -> _Answer:
        """Return the answer for a path and a `range` header."""
        if path == self._about or path.startswith(f"{self._about}/revision/"):
            names = [
                file.relative_to(self._folder).as_posix() for file in files_below(self._folder)
            ]
            siblings = [{"rfilename": each} for each in names]
            return _json({"id": self._name, "sha": _COMMIT, "siblings": siblings, "tags": []})
        if path.startswith(tree := f"{self._about}/tree/"):
            return _json(self._entries(path.removeprefix(tree).partition("/")[2]))
        file = self._folder / path.removeprefix(self._download).partition("/")[2]
        if path.startswith(self._download) and file.is_file():
            return _file(file.read_bytes(), wanted)
        return HTTPStatus.NOT_FOUND, {"x-error-code": "EntryNotFound"}, b""

    def _entries(self, path: str) -> list[dict[str, object]]:
        """Return the files and folders in a folder of the repository."""
        folder = self._folder / path
        return [
            {
                "type": "directory" if each.is_dir() else "file",
                "path": each.relative_to(self._folder).as_posix(),
                "size": each.stat().st_size,
                "oid": "0",
            }
            for each in (sorted(folder.iterdir()) if folder.is_dir() else ())
        ]


def _json(document: object) -> _Answer:
    return HTTPStatus.OK, {"content-type": "application/json"}, json.dumps(document).encode()


def _file(data: bytes, wanted: str) -> _Answer:
    headers = {
        "etag": f'"{hashlib.sha256(data).hexdigest()}"',
        "x-repo-commit": _COMMIT,
        "accept-ranges": "bytes",
    }
    if not wanted:
        return HTTPStatus.OK, headers, data
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    start, end = int(first), min(int(last or len(data)), len(data) - 1)
    headers["content-range"] = f"bytes {start}-{end}/{len(data)}"
    return HTTPStatus.PARTIAL_CONTENT, headers, data[start : end + 1]
