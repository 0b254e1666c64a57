"""Serve the page: files of this package, with headers that let nothing foreign run.

The page uses only the public HTTP interface, so these routes need no key and know nothing.
"""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from fastapi import APIRouter, HTTPException
from starlette.requests import Request
from starlette.responses import Response

router: Final = APIRouter(include_in_schema=False)
_FOLDER: Final = files(__package__) / "static"
_MEDIA_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
"""Files with other endings are not served."""
SECURITY_HEADERS: Final[Mapping[str, str]] = {
    # https://www.w3.org/TR/CSP3/ The page has no inline script or style, and asks no other host.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, kw_only=True)
class _File:
    """A file of the page."""

    content: bytes
    media_type: str
    etag: str


def _read(folder: Traversable, prefix: str = "") -> dict[str, _File]:
    """Return all files below a folder by their paths."""
    found: dict[str, _File] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= _read(entry, f"{prefix}{entry.name}/")
        elif media_type := _MEDIA_TYPES.get(entry.name.rpartition(".")[2]):
            content = entry.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[prefix + entry.name] = _File(content=content, media_type=media_type, etag=etag)
    return found


class PageFiles:
    """It has the files of the page, which are read once."""

    def __init__(self) -> None:
        self._files = _read(_FOLDER)

    def answer(self, name: str, known: str | None) -> Response:
        """Return a file; without its content if the caller has it. Raises HTTPException.

        Args:
            known: the `If-None-Match` of the request.
        """
        if (file := self._files.get(name)) is None:
            raise HTTPException(404, f"the page has no file {name!r}")
        headers = {**SECURITY_HEADERS, "ETag": file.etag}
        if known == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.media_type)


@functools.cache
def _page() -> PageFiles:
    return PageFiles()


@router.get("/")
async def get_page(request: Request) -> Response:
    """Send the page."""
    return _page().answer("index.html", request.headers.get("If-None-Match"))


@router.get("/assets/{name:path}")
async def get_asset(request: Request, name: str) -> Response:
    """Send a file that the page loads."""
    return _page().answer(name, request.headers.get("If-None-Match"))
