"""Takes the pictures of the playground: python docs/take_pictures.py [CHROMIUM].

They show models/g2p-en and, for docs/learn.md, the bundles that `python -m recipes.papers lesson` leaves; without
these, the pictures of their answers stay as they are. The answer in Arabic is made up: no shipped model writes Arabic.
"""

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Browser, Locator, Page, Route, sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
MODEL, LESSON = ROOT / "models" / "g2p-en", ROOT / "bundles" / "lesson"
REPORT = ROOT / "lesson.html"
"""docs/learn.md has the commands that make it."""
WIDE, PHONE = {"width": 1080, "height": 900}, {"width": 390, "height": 844}
WORD, LESSON_WORD = "knowledgeable", "understanding"
NUM_COLORS = 96
ARABIC_SOURCE = "كتب الولد الدرس"
ARABIC, OTHER_ARABIC = ["كَتَبَ", "الْوَلَدُ", "الدَّرْسَ"], ["كُتِبَ", "الْوَلَدُ", "الدَّرْسَ"]
ARABIC_WEIGHTS = [[8, 2, 0, 0], [1, 8, 1, 0], [0, 1, 9, 0], [0, 0, 1, 9]]


def main(chromium: str = "/usr/bin/chromium") -> None:
    """Serves the models and takes every picture."""
    bundles = [MODEL, *sorted(LESSON.glob("*/"))]
    with served(bundles) as address, sync_playwright() as playwright:
        # As root, chromium runs only without its sandbox. The pages are ours.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = opened(browser, address, {"text": WORD, "model": "g2p-en"}, WIDE, color_scheme=scheme)
            page.get_by_role("group", name="Target symbols").locator(".symbol").nth(4).hover()
            keep(page, f"playground-{scheme}")
        page = opened(browser, address, {"text": WORD, "model": "g2p-en", "open": "steps"}, PHONE)
        page.get_by_role("slider").evaluate("(slider) => slider.scrollIntoView()")
        to_step(page, 5)
        keep(page, "playground-phone")
        page = opened(browser, address, {"text": WORD, "model": "g2p-en", "open": "tree"}, WIDE)
        page.locator(".node").first.wait_for()
        keep(page, "learn-tree", page.locator("[data-open=tree]"))
        keep(in_arabic(browser, address), "playground-arabic")
        if len(bundles) > 1:
            take_lesson(browser, address)
        browser.close()


def take_lesson(browser: Browser, address: str) -> None:
    """Takes the pictures of docs/learn.md."""
    both = {"text": LESSON_WORD, "model": "rnnencdec", "model.2": "rnnsearch"}
    page = opened(browser, address, both, WIDE)
    keep(page, "learn-two-models", page.locator("#answers"))
    page = opened(browser, address, both | {"open": "growth", "open.2": "growth"}, WIDE)
    for button in page.get_by_role("button", name="Measure").all():
        button.click()
    page.locator(".growth").nth(1).wait_for()
    keep(page, "learn-growth", page.locator("#answers"))
    page = opened(browser, address, {"text": LESSON_WORD, "model": "rnnsearch", "open": "steps"}, WIDE)
    to_step(page, 4)
    keep(page, "learn-steps", page.locator("[data-open=steps]"))
    if REPORT.is_file():
        page = browser.new_page(viewport=WIDE)
        page.goto(REPORT.as_uri())
        keep(page, "learn-course", page.locator(".maps").filter(has_text="step").first)


@contextmanager
def served(bundles: list[Path]) -> Iterator[str]:
    """Yields the playground's address."""
    command = [sys.executable, "-m", "server", *map(str, bundles), "--port", "0", "--metrics-port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = re.search(r"playground on (\S+);", server.stdout.readline())
        assert address is not None, "the server does not serve"
        try:
            yield address[1]
        finally:
            server.terminate()


def opened(browser: Browser, address: str, shown: dict[str, str], size: dict[str, int], **options: Any) -> Page:
    """Returns the page of an address, answered."""
    page = browser.new_page(viewport=size, reduced_motion="reduce", device_scale_factor=1, **options)  # type: ignore[arg-type]
    page.goto(f"{address}#{urlencode(shown)}")
    page.locator("[data-part=text] .word").first.wait_for()
    page.evaluate("document.activeElement.blur()")
    return page


def to_step(page: Page, number: int) -> None:
    page.get_by_role("slider").evaluate(
        "(slider, number) => { slider.value = number; slider.dispatchEvent(new Event('input')); }", number
    )


def in_arabic(browser: Browser, address: str) -> Page:
    """Returns a page whose answer was made up."""
    weights = [weight / sum(row) for row in ARABIC_WEIGHTS for weight in row]
    hypotheses = [
        {
            "text": " ".join(tokens),
            "tokens": tokens,
            "score": log_prob,
            "logProb": log_prob,
            "tokenLogProbs": [log_prob / 4] * 4,
            "finishReason": "FINISH_REASON_EOS",
            "attention": {"rows": 4, "columns": 4, "weights": weights},
        }
        for tokens, log_prob in ((ARABIC, -0.4), (OTHER_ARABIC, -1.6))
    ]
    response = {
        "hypotheses": hypotheses,
        "sourceTokens": [*ARABIC_SOURCE.split(), "</s>"],
        "timings": {"total": 0.02, "steps": 4, "meanBatchRows": 4.0},
    }

    def answer(route: Route) -> None:
        body = f"event: response\ndata: {json.dumps({'response': response})}\n\n"
        route.fulfill(body=body, content_type="text/event-stream")

    page = browser.new_page(viewport=WIDE, reduced_motion="reduce")  # type: ignore[arg-type]
    page.route(re.compile(r"/v1/generate\?stream=1$"), answer)
    page.goto(address)
    page.get_by_label("Text", exact=True).fill(ARABIC_SOURCE)
    page.locator("[data-part=text] .word").first.wait_for()
    return page


def keep(page: Page, name: str, part: Locator | None = None) -> None:
    """Writes a picture of the window, or of a part of the page."""
    page.wait_for_timeout(300)
    taken = page.screenshot() if part is None else part.screenshot()
    image = Image.open(io.BytesIO(taken)).convert("RGB").quantize(NUM_COLORS, dither=Image.Dither.NONE)
    path = IMAGES / f"{name}.png"
    image.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(*sys.argv[1:])
