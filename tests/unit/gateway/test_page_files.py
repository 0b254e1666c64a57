"""The files of the page: small, from nowhere else, and nothing in them runs what is written."""

import re
from pathlib import Path
from typing import Final

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from imagefleet.producer.gateway.page import files as page_files

STATIC: Final = Path(page_files.__file__).parent / "static"
SCRIPTS: Final = sorted(STATIC.rglob("*.js"))
OWN: Final = [path for path in SCRIPTS if path.parent.name != "vendor"]
_MAX_LINES: Final = 300
_MAX_BYTES: Final = 200_000


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    app.include_router(page_files.router)
    return TestClient(app)


def test_all_that_the_page_loads_is_small() -> None:
    loaded = [
        path for path in STATIC.rglob("*.*") if path.suffix in (".js", ".css", ".html", ".svg")
    ]
    assert len(loaded) > 20
    assert sum(path.stat().st_size for path in loaded) < _MAX_BYTES


def test_the_page_is_served_with_headers_that_let_nothing_foreign_run(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "style-src 'self';" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    script = client.get("/assets/app.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert script.headers["content-security-policy"] == policy


def test_a_file_that_the_browser_has_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/assets/style.css")
    again = client.get("/assets/style.css", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "name", ["%2e%2e/files.py", "..%2ffiles.py", "vendor", "", "vendor/README.md"]
)
def test_nothing_but_the_files_of_the_page_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/assets/{name}").status_code == 404


def test_the_page_has_no_inline_script_or_style() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\ssrc=)[^>]*>", page) == []
    assert "<style" not in page
    assert not re.search(r"\s(style|on[a-z]+)=", page)
    assert not re.search(r"(src|href)=\"(https?:)?//", page)


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_a_script_loads_only_files_that_exist_and_writes_no_markup_of_texts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for imported in re.findall(r"from \"([^\"]+)\"", text):
        assert (path.parent / imported).is_file(), imported
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    assert text.startswith("// ")
    assert len(text.splitlines()) <= _MAX_LINES


def test_each_library_has_its_licence() -> None:
    vendor = STATIC / "vendor"
    assert "MIT" in (vendor / "preact-LICENSE.txt").read_text(encoding="utf-8")
    assert "Apache License" in (vendor / "htm-LICENSE.txt").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\S+)`", (vendor / "README.md").read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(path.name for path in vendor.glob("*.js"))
