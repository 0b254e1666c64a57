"""Every link from one document to another leads to a file, and to a heading, that exists."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import ROOT

_DOCUMENTS: Final = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def _prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken_links(page: Path) -> Iterator[str]:
    for link in _LINK.findall(_prose(page)):
        address, _, anchor = link.partition("#")
        if "://" in address:
            continue
        target = (page.parent / address).resolve() if address else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            yield link


@pytest.mark.parametrize("page", _DOCUMENTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_link_leads_somewhere(page: Path) -> None:
    assert list(_broken_links(page)) == []


def test_the_readme_leads_to_each_page() -> None:
    linked = {link.partition("#")[0] for link in _LINK.findall((ROOT / "README.md").read_text())}
    pages = {page.relative_to(ROOT).as_posix() for page in ROOT.glob("docs/*.md")}
    assert pages - linked == {"docs/log.md"}  # it is for those who work on the project
