"""Helpers for the playground in a browser: its parts, its requests, and artificial answers."""

import json
import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

WORD = "phoneme"
SPOKEN = "F OW1 N IY0 M"
STREAM = re.compile(r"/v1/generate\?stream=1$")
GENERATE = re.compile(r"/v1/generate$")
MODELS = re.compile(r"/v1/models$")


def source(page: Page) -> Locator:
    return page.get_by_label("Text", exact=True)


def panel_of(page: Page, number: int = 0) -> Locator:
    return page.locator(".panel").nth(number)


def ask(page: Page, text: str = WORD, number: int = 0, model: str = "g2p-en") -> Locator:
    """Types a text, waits for the answer, and returns the panel of that number."""
    panel = panel_of(page, number)
    panel.get_by_label("Model").select_option(label=model)
    source(page).fill(text)
    expect(panel.locator(".map .symbol").first).to_be_visible()
    return panel


def text_of(panel: Locator) -> Locator:
    return panel.locator("[data-part=text]")


def request_bodies(page: Page) -> list[dict[str, Any]]:
    """Returns a list that later requests append their bodies to."""
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None)
    return bodies


def reload_with(page: Page, change: Callable[[list[Any]], list[Any]], *, times: int | None = 1) -> None:
    """Reloads the page; `change` edits the server's list of models `times` times, or always if None."""

    def changed(route: Route) -> None:
        route.fulfill(json={"models": change(route.fetch().json()["models"])})

    page.route(MODELS, changed, times=times)
    page.reload()


def event(kind: str, content: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(content if kind == 'error' else {kind: content}, ensure_ascii=False)}\n\n"


def hypothesis(text: str, tokens: list[str]) -> dict[str, Any]:
    finish = {"finishReason": "FINISH_REASON_EOS", "tokenLogProbs": [-0.5] * len(tokens)}
    return {"text": text, "tokens": tokens, "score": -1.0, "logProb": -1.0, **finish}


def answer_with(page: Page, text: str, tokens: list[str], **fields: Any) -> Locator:
    """Replaces the server's answer; returns the panel that shows it."""
    timings = {"total": 0.01, "steps": 3, "meanBatchRows": 1.0}
    response = {"hypotheses": [hypothesis(text, tokens)], "sourceTokens": ["a"], "timings": timings, **fields}
    body = event("response", response)
    page.route(STREAM, lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    source(page).fill("a")
    panel = panel_of(page)
    expect(text_of(panel)).to_have_text(text)
    return panel
