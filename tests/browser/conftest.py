"""A fleet with the bundled model, and Debian's Chromium, for the tests of the page.

`make page-test` installs both. Without Chromium on the PATH, or without Playwright, the tests are
not collected: nothing of users depends on either.
"""

import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any, Final

import pytest

from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.gateway import GatewayFleet, fleet_with_gateways

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
collect_ignore_glob = [] if CHROMIUM and importlib.util.find_spec("playwright") else ["test_*.py"]


@pytest.fixture(scope="session")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, redis_server: LocalRedisServer
) -> Iterator[GatewayFleet]:
    folder = tmp_path_factory.mktemp("page")
    with fleet_with_gateways(
        folder,
        redis_server.url,
        IMAGEFLEET_MODEL="shapes",
        IMAGEFLEET_SHAPES="64x64,64x96",
        IMAGEFLEET_CACHE_DIR=f"{folder}/cache",
    ) as started:
        yield started


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, fleet: GatewayFleet) -> Iterator[Any]:
    """A page of the gateway that asks for no key. Any error of a script fails the test."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    opened, errors = context.new_page(), list[str]()
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(f"{fleet.open_url}/")
    yield opened
    context.close()
    assert errors == []
