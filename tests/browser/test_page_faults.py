"""Faults and late events in the playground: broken connections, former texts, updated models, marks."""

import re
from contextlib import suppress
from typing import Any

from playwright.sync_api import Error, Page, Route, expect

from tests.browser.playground import (
    GENERATE,
    MODELS,
    SPOKEN,
    STREAM,
    WORD,
    answer_with,
    ask,
    event,
    hypothesis,
    panel_of,
    reload_with,
    request_bodies,
    source,
    text_of,
)

# Breaks the connection after the first piece of an answer.
BREAKING = """() => {
    const plain = window.fetch;
    window.fetch = async (path, options) => {
      if (!path.includes("stream")) return plain(path, options);
      window.fetch = plain;
      return new Response(new ReadableStream({
        start(controller) {
          const delta = `event: delta\\ndata: ${JSON.stringify({ delta: { tokens: ["F"], text: "F" } })}\\n\\n`;
          controller.enqueue(new TextEncoder().encode(delta));
          setTimeout(() => controller.error(new TypeError("network error")), 50);
        },
      }));
    };
}"""


def test_an_answer_that_broke_off_is_incomplete_and_can_be_tried_again(page: Page) -> None:
    delta = event("delta", {"tokens": ["F"], "text": "F"})
    error = event("error", {"code": "UNAVAILABLE", "title": "Unavailable", "detail": "the server shuts down"})
    broken = "The connection broke before the answer was complete."
    for body, reason in (("", broken), (delta, broken), (delta + error, "the server shuts down")):
        check_incomplete(page, body, reason)


def check_incomplete(page: Page, body: str, reason: str) -> None:
    """Checks an answer that ends with this body, or whose connection breaks if the body is empty."""
    panel = ask(page)
    expect(text_of(panel)).to_have_text(SPOKEN)
    if body:
        page.route(STREAM, lambda route: route.fulfill(body=body, content_type="text/event-stream"), times=1)
    else:
        page.evaluate(BREAKING)
    source(page).fill("face")
    expect(text_of(panel)).to_have_text("F …")
    expect(text_of(panel)).to_have_class(re.compile("incomplete"))
    expect(panel.get_by_role("alert")).to_have_text(f"Incomplete: {reason}")
    expect(panel.locator(".best button, .map svg, [data-part=tools]:not([hidden])")).to_have_count(0)
    panel.get_by_role("button", name="Try again").press("Enter")
    expect(text_of(panel)).to_have_text("F EY1 S")
    expect(text_of(panel)).not_to_have_class(re.compile("incomplete"))
    expect(panel.get_by_role("button", name="Try again")).to_be_hidden()
    expect(panel.get_by_role("alert")).to_have_text("")
    expect(panel.locator(".word").first).to_be_focused()


def test_a_call_to_a_server_that_is_not_reached_can_be_tried_again_and_a_mistake_can_not(page: Page) -> None:
    panel = ask(page)
    page.route(STREAM, lambda route: route.abort(), times=1)
    source(page).fill("face")
    expect(panel.get_by_role("alert")).to_have_text("The server can't be reached.")
    panel.get_by_role("button", name="Try again").click()
    expect(text_of(panel)).to_have_text("F EY1 S")
    source(page).fill("a" * 100)
    expect(panel.get_by_role("alert")).to_contain_text("text is 100")
    expect(panel.locator(".map svg")).to_have_count(0)
    expect(panel.get_by_role("button", name="Try again")).to_be_hidden()
    source(page).fill(WORD)
    expect(text_of(panel)).to_have_text(SPOKEN)
    expect(panel.get_by_role("alert")).to_have_text("")


def test_alternatives_for_a_previous_text_are_not_shown(page: Page) -> None:
    panel = ask(page)
    held: list[Route] = []
    page.route(GENERATE, lambda route: held.append(route))
    panel.locator(".word").nth(1).click()
    page.wait_for_timeout(100)
    assert len(held) == 1
    source(page).fill("face")
    expect(text_of(panel)).to_have_text("F EY1 S")
    hypotheses = [hypothesis("F OW", ["F", "OW"]), hypothesis("F AA", ["F", "AA"])]
    with suppress(Error):  # the page no longer waits for it
        held[0].fulfill(json={"hypotheses": hypotheses})
    page.wait_for_timeout(200)
    expect(panel.locator(".alternatives")).to_be_hidden()


def test_an_answer_stays_when_its_alternatives_fail(page: Page) -> None:
    panel = ask(page)
    page.route(GENERATE, lambda route: route.abort(), times=1)
    panel.locator(".word").nth(1).click()
    expect(panel.get_by_role("alert")).to_have_text("No alternatives: The server can't be reached.")
    expect(panel.get_by_role("button", name="Try again")).to_be_hidden()
    expect(text_of(panel)).to_have_text(SPOKEN)
    panel.get_by_role("button", name="Copy the answer").focus()
    panel.locator(".word").nth(1).click()
    expect(panel.get_by_role("group", name="Instead of OW1")).to_be_visible()
    expect(panel.get_by_role("alert")).to_have_text("")


def test_a_pending_answer_is_announced_and_the_previous_one_is_disabled(page: Page) -> None:
    panel = ask(page)
    held: list[Route] = []
    page.route(STREAM, lambda route: held.append(route))
    expect(panel.get_by_text("Working …", exact=True).first).to_be_hidden()
    source(page).fill("face")
    expect(panel.locator(".working")).to_be_visible()
    expect(panel.get_by_role("status")).to_have_text("Working …")
    expect(panel).to_have_attribute("aria-busy", "true")
    assert panel.locator("[data-part=inside]").evaluate("(inside) => inside.inert")
    panel.locator(".word").nth(1).click()
    page.wait_for_timeout(200)
    expect(panel.locator(".alternatives")).to_be_hidden()
    held[0].continue_()
    expect(text_of(panel)).to_have_text("F EY1 S")
    expect(panel.locator(".working")).to_be_hidden()
    assert not panel.locator("[data-part=inside]").evaluate("(inside) => inside.inert")


def test_warnings_are_shown_and_go_with_their_answer(page: Page) -> None:
    panel = panel_of(page)
    panel.get_by_label("Model").select_option(label="g2p-en")
    source(page).fill("漢字")
    warning = panel.get_by_role("list", name="Warnings").get_by_role("listitem")
    expect(warning).to_contain_text(["漢", "the confidence is "])
    expect(panel.get_by_role("status")).to_contain_text("Warning: ")
    source(page).fill(WORD)
    expect(text_of(panel)).to_have_text(SPOKEN)
    expect(warning).to_have_count(0)
    answered = answer_with(page, "x", ["x"], warnings=["it was <b>cut</b>", "and more"])
    expect(answered.get_by_role("list", name="Warnings").get_by_role("listitem")).to_have_text(
        ["it was <b>cut</b>", "and more"]
    )


def served_before(page: Page, *roles: str) -> list[dict[str, Any]]:
    """Reloads the page as if versions with these roles were served; returns the later requests' bodies."""

    def former(models: list[Any]) -> list[Any]:
        (model,) = (model for model in models if model["name"] == "g2p-en")
        return [
            {**model, "version": f"{number:012}", "label": str(number), "role": role}
            for number, role in enumerate(roles)
        ]

    reload_with(page, former)
    return request_bodies(page)


def test_a_page_that_is_open_while_its_model_is_updated_goes_on(page: Page) -> None:
    bodies = served_before(page, "ROLE_STABLE")
    panel = panel_of(page)
    version = panel.locator(".facts dd").nth(1)
    expect(version).to_have_text("000000000000")
    source(page).fill(WORD)
    expect(text_of(panel)).to_have_text(SPOKEN)
    expect(version).to_have_text(re.compile("^(?!0{12})[0-9a-f]{12}$"))
    assert "version" not in bodies[0]
    expect(panel.get_by_label("Model").locator("option")).to_have_text(["g2p-en", "tiny"])
    panel.locator(".word").nth(1).click()
    expect(panel.get_by_role("group", name="Instead of OW1")).to_be_visible()


def test_a_model_that_is_gone_is_named_and_the_others_can_be_chosen(page: Page) -> None:
    reload_with(page, lambda models: [{**model, "name": "former"} for model in models if model["name"] == "tiny"])
    panel = panel_of(page)
    expect(panel.get_by_label("Model").locator("option")).to_have_text(["former"])
    source(page).fill(WORD)
    expect(panel.get_by_role("alert")).to_contain_text("former")
    expect(panel.get_by_label("Model").locator("option")).to_have_text(["g2p-en", "tiny"])
    panel.get_by_label("Model").select_option(label="tiny")
    panel.get_by_label("Model").select_option(label="g2p-en")
    expect(text_of(panel)).to_have_text(SPOKEN)


def test_the_error_of_a_previous_text_does_not_replace_an_answer(page: Page) -> None:
    """An error may have come from an updated model, so the list of models is fetched before it is shown."""
    panel = ask(page)
    held: list[Route] = []
    page.route(MODELS, lambda route: held.append(route), times=1)
    with page.expect_request(MODELS):
        source(page).fill("...")
    source(page).fill("face")
    expect(text_of(panel)).to_have_text("F EY1 S")
    with page.expect_response(MODELS):
        held[0].continue_()
    page.wait_for_timeout(100)
    expect(panel.get_by_role("alert")).to_have_text("")
    expect(text_of(panel)).to_have_text("F EY1 S")


def test_a_failed_list_of_models_can_be_requested_again(page: Page) -> None:
    page.route(MODELS, lambda route: route.abort(), times=1)
    page.reload()
    expect(page.locator("#server")).to_have_text("The server can't be reached.")
    page.route(MODELS, lambda route: route.fulfill(body="<html>", status=502), times=1)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#server")).to_have_text("The server answered with status 502.")
    page.route(MODELS, lambda route: route.fulfill(json={"models": []}), times=1)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#server")).to_have_text("No model is served now.")
    page.get_by_role("button", name="Try again").press("Enter")
    expect(page.locator("#server")).to_have_text("2 models")
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    ask(page)


def test_the_focus_stays_with_the_choice(page: Page) -> None:
    panel = ask(page)
    panel.locator(".word").nth(1).press("Enter")
    choices = panel.get_by_role("group", name="Instead of OW1").get_by_role("button")
    expect(choices.first).to_be_focused()
    page.keyboard.press("ArrowDown")
    other = choices.nth(1).locator("b").inner_text()
    page.keyboard.press("Enter")
    expect(text_of(panel)).to_have_text(re.compile(rf"^F {other} "))
    expect(panel.locator("[data-part=prefix]")).to_be_visible()
    expect(panel.locator(".word").nth(1)).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(panel.locator(".word").nth(2)).to_be_focused()
    page.keyboard.press("Space")
    expect(choices.or_(panel.locator(".alternatives button")).first).to_be_focused()
    page.keyboard.press("Escape")
    expect(panel.locator(".word").nth(2)).to_be_focused()
    panel.get_by_role("button", name="Let it choose").press("Enter")
    expect(text_of(panel)).to_have_text(SPOKEN)
    expect(panel.locator(".word").first).to_be_focused()


def test_an_empty_answer_is_shown_as_such(page: Page) -> None:
    panel = ask(page)
    timings = {"total": 0.01, "steps": 1, "meanBatchRows": 1.0}
    body = event("response", {"hypotheses": [hypothesis("", [])], "sourceTokens": ["a"], "timings": timings})
    page.route(STREAM, lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    source(page).fill("a")
    expect(text_of(panel)).to_have_text("(empty)")
    expect(panel.get_by_text("Press a symbol of the answer")).to_be_hidden()


MARKED = "مُحَمَّد said hi"


def test_marks_belong_to_their_letters_and_arabic_is_not_reversed(page: Page) -> None:
    panel = answer_with(page, MARKED, [*"مُحَمَّد", "▁said", "▁hi"])
    words = panel.locator(".word")
    expect(words).to_have_text(["مُ", "حَ", "مَّ", "د", "said", "hi"])
    expect(text_of(panel)).to_have_attribute("dir", "auto")
    left = [words.nth(index).bounding_box()["x"] for index in range(6)]  # type: ignore[index]
    assert left[0] > left[1] > left[2] > left[3], "from right to left"
    assert left[3] > left[4] and left[4] < left[5], "the words of another script in their own order, at the left"
    bodies: list[dict[str, Any]] = []
    page.route(GENERATE, lambda route: (bodies.append(route.request.post_data_json), route.abort()))
    words.nth(2).click()
    expect(panel.get_by_role("alert")).to_have_text("No alternatives: The server can't be reached.")
    assert bodies[0]["decoding"]["targetPrefix"]["tokens"] == [*"مُحَ"], "all symbols before the letter"


GROUPS: list[tuple[str, list[str], list[str]]] = [
    ("F OW", ["F", "OW"], ["F", " OW"]),
    ("the cat, sat", ["▁the", "▁ca", "t", ",", "▁sat"], ["the", " ca", "t", ",", " sat"]),
    ("a\u0301e", ["a", "\u0301", "e"], ["a\u0301", "e"]),
    ("👩\u200d👧 x", ["👩", "\u200d", "👧", "▁x"], ["👩\u200d👧", " x"]),
    ("नि", ["न", "ि"], ["नि"]),
    ("\u1100\u1161\u11a8", ["\u1100", "\u1161", "\u11a8"], ["\u1100\u1161\u11a8"]),
    ("漢 b", ["<0xE6>", "<0xBC>", "<0xA2>", "▁b"], ["漢", " b"]),
    ("a", ["a", "<unk>"], ["a"]),
    ("a", ["▁", "a"], ["a"]),
    ("a b", [*"a b"], ["a", " ", "b"]),
    ("a, b", ["▁a", "▁", ",", "▁", "b"], ["a", ",", " ", "b"]),
    ("acadd ßd", ["aca", "##dd", "ß", "##d"], ["aca", "dd", " ß", "d"]),
    ("<b>a</b> it {x}.", [*"{1}", "▁a", *"{2}", "▁it", *"{3}."], ["<b>", "a", "</b>", " it", " {", "x", "}", "."]),
    ("\u0301", ["\u0301"], ["\u0301"]),
    ("x" * 4000 + " y", ["x"] * 4000 + ["▁y"], ["x" * 4000 + " y"]),
    ("", ["<unk>"], []),
    ("", [], []),
]


def test_symbols_are_grouped_by_the_characters_that_readers_see(page: Page) -> None:
    for text, tokens, groups in GROUPS:
        call = "([text, tokens]) => import('/page/text.js').then((module) => module.grouped(text, tokens))"
        grouping = page.evaluate(call, [text, tokens])
        shown = [f"{group['before']}{group['text']}" for group in grouping["groups"]]
        assert shown == groups
        assert "".join([*shown, grouping["rest"]]) == text
        covered = [index for group in grouping["groups"] for index in range(group["first"], group["last"] + 1)]
        assert covered == (list(range(len(tokens))) if text else [])
