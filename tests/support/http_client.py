"""Ask a local HTTP server."""

import urllib.request
from urllib.error import HTTPError


def http_get(port: int, path: str) -> tuple[int, str]:
    """Return status and body of a page of this host."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
