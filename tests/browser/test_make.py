"""Images are made, watched, cancelled and made again on the page, and judged by their pixels."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import expect

from tests.support.gateway import GatewayFleet
from tests.support.judge import judge

PROMPT = "a small red circle on the left on a blue background"
_MS = 60_000


def order(page: Any, prompts: str, **fields: str) -> None:
    """Fill the form and order. The cards stand before all others, the last prompt first."""
    page.fill("#prompts", prompts)
    for name, value in fields.items():
        page.fill(f"#{name}", value)
    expect(page.locator("button.main")).to_be_enabled(timeout=_MS)
    page.locator("button.main").click()


def done(page: Any, number: int = 0) -> Any:
    """Wait for the picture of a card, and return it."""
    picture = page.locator(".card").nth(number).locator(".picture img").first
    expect(picture).to_be_visible(timeout=_MS)
    return picture


def pixels(picture: Any) -> NDArray[np.uint8]:
    """Return the pixels of the file that a picture shows, `[h, w, 3]`."""
    content = picture.page.request.get(picture.get_attribute("src")).body()
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def test_a_prompt_becomes_the_image_that_it_describes(page: Any) -> None:
    order(page, PROMPT, seed="1")
    picture = done(page)
    shot = Image.open(io.BytesIO(picture.screenshot())).convert("RGB").resize((64, 64))
    seen = judge(np.asarray(shot))
    assert (seen.colour, seen.shape, seen.background) == ("red", "circle", "blue")
    page.reload()
    assert (pixels(done(page)) == pixels(picture)).all()


def test_steps_and_a_preview_are_seen_while_an_image_is_made(page: Any) -> None:
    page.locator("summary", has_text="More").click()
    order(page, PROMPT, steps="100")
    card = page.locator(".card").first
    expect(card.locator(".steps")).to_contain_text("of 100", timeout=_MS)
    expect(card.locator(".preview")).to_be_visible(timeout=_MS)
    done(page)


def test_a_job_that_is_cancelled_says_so(page: Any) -> None:
    page.locator("summary", has_text="More").click()
    order(page, f"{PROMPT}\n" * 12, steps="100")
    card = page.locator(".card").first
    card.get_by_role("button", name="Cancel").click(timeout=_MS)
    expect(card.locator(".facts")).to_contain_text("cancelled", timeout=_MS)


def test_make_again_gives_the_same_pixels_and_another_seed_gives_four_others(page: Any) -> None:
    order(page, PROMPT)
    first = pixels(done(page))
    page.locator(".card .picture").first.click()
    page.get_by_role("button", name="Make again").click()
    expect(page.locator(".card")).to_have_count(2)
    assert (pixels(done(page)) == first).all()
    page.locator(".card .picture").first.click()
    page.get_by_role("button", name="Another seed").click()
    expect(page.locator(".card")).to_have_count(6)
    others = [pixels(done(page, number)).tobytes() for number in range(4)]
    assert len({*others, first.tobytes()}) == 5


def test_what_lies_outside_a_drawn_mask_is_kept(page: Any) -> None:
    start = np.zeros((64, 64, 3), np.uint8)
    start[..., 1] = np.arange(64, dtype=np.uint8)[None] * 4
    file = io.BytesIO()
    Image.fromarray(start).save(file, "PNG")
    page.set_input_files(
        "input[type=file]", {"name": "s.png", "mimeType": "image/png", "buffer": file.getvalue()}
    )
    mask = page.locator("canvas.mask")
    mask.scroll_into_view_if_needed()
    box = mask.bounding_box()
    mask.focus()
    page.keyboard.press("Space")  # the brush stands in the middle
    order(page, PROMPT, strength="1")
    made = pixels(done(page)).astype(int)
    kept = np.ones((64, 64), bool)
    kept[24:40, 24:40] = False
    assert box is not None
    assert np.abs(made - start)[kept].max() == 0
    assert np.abs(made - start)[~kept].max() > 20


def test_script_in_a_prompt_stays_text(page: Any, fleet: GatewayFleet) -> None:
    prompt = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
    order(page, prompt)
    done(page)
    expect(page.locator(".card .prompt").first).to_have_text(prompt)
    page.goto(f"{fleet.open_url}/#/gallery?prompt=onerror")
    expect(page.locator(".tile .prompt").first).to_have_text(prompt)
    page.locator(".tile .picture").first.click()
    expect(page.locator("dialog h2")).to_have_text(prompt)
    assert page.title() == "Gallery · imagefleet"


def test_a_wrong_value_is_told_in_words(page: Any) -> None:
    page.fill("#seed", "")
    page.locator("#images").evaluate("each => each.removeAttribute('max')")
    order(page, PROMPT, images="999")
    expect(page.locator(".problem")).to_contain_text("num_images_per_prompt=999")
