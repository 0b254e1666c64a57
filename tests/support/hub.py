"""A Hugging Face Hub of one repository, over real HTTP, serving a folder."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from unittest import mock

from imagefleet.producer.demo.local_http import LocalServer

_COMMIT = "0" * 40
_FILE_URL = "/{repo_id}/resolve/{revision}/{filename}"


@contextmanager
def serving(repository: str, folder: Path, cache: Path) -> Iterator[list[str]]:
    """The Hub of this process is this one; yields the files fetched from it, as they are."""
    fetched: list[str] = []
    with LocalServer(_door(repository, folder, fetched)) as server:
        url = f"http://127.0.0.1:{server.port}"
        with (
            mock.patch("huggingface_hub.constants.ENDPOINT", url),
            mock.patch("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url + _FILE_URL),
            mock.patch("huggingface_hub.constants.HF_HUB_CACHE", str(cache)),
        ):
            yield fetched


def _door(repository: str, folder: Path, fetched: list[str]) -> type[BaseHTTPRequestHandler]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in files]

    class Door(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            if (body := self._answer()) is not None:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> bytes | None:
            path = self.path.partition("?")[0]
            if path.startswith(f"/api/models/{repository}/tree/"):
                tree = [{"type": "file", "path": name, "size": 1, "oid": "0"} for name in names]
                return self._send(json.dumps(tree).encode(), "application/json")
            if path.startswith(f"/api/models/{repository}"):
                about = {"id": repository, "sha": _COMMIT}
                return self._send(json.dumps(about).encode(), "application/json")
            name = path.removeprefix(f"/{repository}/resolve/{_COMMIT}/")
            if name in names:
                if self.command == "GET":
                    fetched.append(name)
                return self._send((folder / name).read_bytes(), "application/octet-stream")
            self.send_error(404)
            return None

        def _send(self, body: bytes, kind: str) -> bytes:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("x-repo-commit", _COMMIT)
            self.end_headers()
            return body

    return Door
