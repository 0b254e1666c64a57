"""Measure how fast the page of a gateway shows, and how much it loads.

Run it with `python -m benchmarks.page URL`. It needs Playwright, as `make page-test` installs it,
and a Chromium on the PATH. Each view is opened in a new browser context, with an empty cache. It
prints a table and one line of JSON.
"""

import argparse
import json
import shutil
import statistics
import sys
from typing import Any, Final

VIEWS: Final = ("make", "gallery", "datasets", "fleet")
_READ: Final = """() => {
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  const loads = ["resource", "navigation"].flatMap((type) => performance.getEntriesByType(type));
  const own = loads.filter((each) => !each.name.includes("/v1/"));
  return [paint ? paint.startTime : null, own.reduce((sum, each) => sum + each.transferSize, 0)];
}"""


def measure(browser: Any, url: str, view: str) -> tuple[float, int]:
    """Return the milliseconds to the first contentful paint (W3C Paint Timing), and the bytes of
    the page's own files on the wire."""
    context = browser.new_context(bypass_csp=True)
    page = context.new_page()
    page.goto(f"{url}/#/{view}")
    page.locator("h1").first.wait_for(state="attached")
    paint, loaded = page.evaluate(_READ)
    context.close()
    return float(paint), int(loaded)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="the address of a gateway that asks for no key")
    parser.add_argument("--times", type=int, default=10)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    result: dict[str, dict[str, float]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for view in VIEWS:
            seen = [measure(browser, options.url.rstrip("/"), view) for _ in range(options.times)]
            paints = sorted(paint for paint, _ in seen)
            result[view] = {
                "first_paint_ms_median": round(statistics.median(paints)),
                "first_paint_ms_most": round(paints[-1]),
                "kB": round(max(loaded for _, loaded in seen) / 1000, 1),
            }
        browser.close()
    print("view       first paint, median   at most      files")
    for view, numbers in result.items():
        median, most, size = numbers.values()
        print(f"{view:10} {median:>16} ms {most:>8} ms {size:>7} kB")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
