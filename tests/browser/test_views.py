"""The other views of the page: gallery, fleet, datasets, keys, and what each key may see."""

from pathlib import Path
from typing import Any, Final

import axe_playwright_python
import httpx
import pytest
from playwright.sync_api import expect

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.keys import ApiKeys
from tests.browser.test_make import PROMPT, done, order
from tests.support.gateway import GatewayFleet
from tests.support.processes import until

_MS = 60_000
AXE: Final = Path(axe_playwright_python.__file__).parent / "axe.min.js"
VIEWS: Final = ("make", "gallery", "datasets", "fleet")


def _key(fleet: GatewayFleet, tenant: str, *scopes: Scope) -> str:
    return ApiKeys(fleet.producer.connection).create(tenant, tenant, scopes)


def _open_with_key(page: Any, fleet: GatewayFleet, key: str) -> None:
    page.goto(f"{fleet.guarded_url}/")
    page.fill("#key", key)
    page.get_by_role("button", name="Open").click()


def test_a_gallery_is_searched_starred_and_turned_over(page: Any, fleet: GatewayFleet) -> None:
    for number in range(60):
        body = {"input": {"prompt": f"gallery number {number}", "num_inference_steps": 1}}
        httpx.post(f"{fleet.open_url}/v1/predictions", json=body).raise_for_status()
    page.goto(f"{fleet.open_url}/#/gallery")
    expect(page.locator(".tile")).to_have_count(48, timeout=_MS)
    page.get_by_role("link", name="Older").click()
    expect(page.locator(".tile .prompt").first).to_have_text("gallery number 11", timeout=_MS)
    page.get_by_role("link", name="Newer").click()
    expect(page.locator(".tile .prompt").first).to_have_text("gallery number 59", timeout=_MS)
    page.get_by_role("searchbox").fill("GALLERY NUMBER 59")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".tile")).to_have_count(1, timeout=_MS)
    page.locator(".tile .star").click()
    expect(page.locator(".tile .star")).to_have_attribute("aria-pressed", "true", timeout=_MS)
    page.goto(f"{fleet.open_url}/#/gallery?starred=true")
    expect(page.locator(".tile .prompt")).to_have_text("gallery number 59", timeout=_MS)


def test_a_key_is_asked_for_and_decides_what_is_shown(page: Any, fleet: GatewayFleet) -> None:
    _open_with_key(page, fleet, "ifk_wrong")
    expect(page.locator(".welcome")).to_contain_text("key")
    page.fill("#key", _key(fleet, "first", Scope.SUBMIT, Scope.READ))
    page.get_by_role("button", name="Open").click()
    order(page, PROMPT)
    done(page)
    expect(page.get_by_role("link", name="Fleet", exact=True)).to_have_count(0)


def test_the_key_of_another_tenant_sees_nothing(
    browser: Any, page: Any, fleet: GatewayFleet
) -> None:
    _open_with_key(page, fleet, _key(fleet, "one", Scope.SUBMIT, Scope.READ))
    order(page, "a secret prompt")
    done(page)
    other = browser.new_context().new_page()
    _open_with_key(other, fleet, _key(fleet, "two", Scope.READ, Scope.OPERATE))
    other.get_by_role("link", name="Gallery", exact=True).click()
    expect(other.locator(".empty")).to_contain_text("No images yet")
    other.get_by_role("link", name="Fleet", exact=True).click()
    expect(other.get_by_role("heading", name="Hosts")).to_be_visible(timeout=_MS)
    assert "secret" not in other.content()
    other.context.close()


def test_a_key_that_may_only_submit_orders_and_sees_no_gallery(
    page: Any, fleet: GatewayFleet
) -> None:
    _open_with_key(page, fleet, _key(fleet, "blind", Scope.SUBMIT))
    expect(page.get_by_role("link", name="Gallery", exact=True)).to_have_count(0)
    order(page, PROMPT)
    expect(page.locator(".card code")).to_have_count(1, timeout=_MS)


def test_operators_see_hosts_and_redrive_a_dead_letter(page: Any, fleet: GatewayFleet) -> None:
    inputs = {"prompt": "fails", "image": "http://127.0.0.1:9/inside.png", "strength": 0.5}
    answer = httpx.post(
        f"{fleet.open_url}/v1/predictions",
        json={"input": inputs},
        headers={"Prefer": "wait"},
        timeout=300,
    )
    job = fleet.producer.get(answer.json()["id"])
    until(lambda: job.status().done)
    page.goto(f"{fleet.open_url}/#/fleet")
    expect(page.get_by_role("region", name="Hosts")).to_contain_text("shapes", timeout=_MS)
    expect(page.get_by_role("region", name="Failed jobs")).to_contain_text("invalid_input")
    letters = page.get_by_role("region", name="Dead letters")
    letters.get_by_role("button", name="Redrive").first.click(timeout=_MS)
    expect(page.locator("[role=status][aria-live]")).to_have_text("queued again", timeout=_MS)


def test_a_dataset_is_started_and_its_sample_is_seen(page: Any, fleet: GatewayFleet) -> None:
    page.goto(f"{fleet.open_url}/#/datasets")
    page.locator("summary", has_text="Start a dataset").click()
    page.fill("#rows", f"{PROMPT}\na green star on a black background")
    page.fill("#name", "two shapes")
    page.get_by_role("button", name="Make 2 images").click()
    expect(page.get_by_role("heading", name="two shapes")).to_be_visible(timeout=_MS)
    expect(page.locator("main")).to_contain_text("2 of 2 rows", timeout=_MS)
    expect(page.locator(".sample img").first).to_be_visible(timeout=_MS)
    page.get_by_role("button", name="Verify").click(timeout=_MS)
    expect(page.locator(".good")).to_contain_text("Verified", timeout=_MS)


def test_the_page_says_that_nothing_answers_and_comes_back_by_itself(
    page: Any, fleet: GatewayFleet
) -> None:
    expect(page.locator("h1")).to_be_visible(timeout=_MS)
    page.route("**/v1/**", lambda route: route.abort())
    page.goto(f"{fleet.open_url}/#/gallery")
    expect(page.get_by_role("alert").first).to_contain_text("does not answer", timeout=_MS)
    page.unroute("**/v1/**")
    expect(page.locator(".banner")).to_have_count(0, timeout=_MS)
    expect(page.get_by_role("list", name="Jobs")).to_be_attached(timeout=_MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing_serious(
    browser: Any, fleet: GatewayFleet, scheme: str, width: int
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    )
    page = context.new_page()
    page.goto(f"{fleet.open_url}/")
    order(page, PROMPT)
    done(page)
    found = []
    for view in (*VIEWS, "viewer"):
        page.goto(f"{fleet.open_url}/#/{'gallery' if view == 'viewer' else view}")
        expect(page.locator("h1").first).to_be_attached(timeout=_MS)
        page.wait_for_load_state("networkidle")
        if view == "viewer":
            page.locator(".tile .picture").first.click()
            expect(page.locator("dialog dl")).to_be_visible()
        page.add_script_tag(path=AXE)
        result = page.evaluate("() => axe.run()")
        found += [
            (view, each["id"], [node["target"] for node in each["nodes"]][:3])
            for each in result["violations"]
            if each["impact"] in ("serious", "critical")
        ]
    context.close()
    assert found == []
