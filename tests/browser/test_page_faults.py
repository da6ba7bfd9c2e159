"""The playground where something goes wrong or comes late: broken connections, former texts, updated models, marks."""

import itertools
import re
from contextlib import suppress
from typing import Any

import pytest
from playwright.sync_api import Error, Page, Route, expect

from tests.browser.playground import (
    GENERATE,
    MODELS,
    SPOKEN,
    STREAM,
    WORD,
    answer_with,
    ask,
    asked_for,
    event,
    hypothesis,
    panel,
    reload_with,
    source,
    text_of,
)
from tests.paths import ROOT

# Breaks the connection after the first piece of an answer.
BREAKING = """() => {
    const plain = window.fetch;
    window.fetch = async (path, given) => {
      if (!path.includes("stream")) return plain(path, given);
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


@pytest.mark.parametrize("how", ["breaks", "ends", "says so"])
def test_an_answer_that_broke_off_is_incomplete_and_can_be_asked_for_again(page: Page, how: str) -> None:
    one = ask(page)
    ends = event("delta", {"tokens": ["F"], "text": "F"})
    if how == "says so":
        ends += event("error", {"code": "UNAVAILABLE", "title": "Unavailable", "detail": "the server shuts down"})
    if how == "breaks":
        page.evaluate(BREAKING)
    else:
        page.route(STREAM, lambda route: route.fulfill(body=ends, content_type="text/event-stream"), times=1)
    source(page).fill("face")
    expect(text_of(one)).to_have_text("F …")
    expect(text_of(one)).to_have_class(re.compile("incomplete"))
    why = "the server shuts down" if how == "says so" else "The connection broke before the answer was complete."
    expect(one.get_by_role("alert")).to_have_text(f"Incomplete: {why}")
    expect(one.locator(".best button, .map svg, [data-part=tools]:not([hidden])")).to_have_count(0)
    one.get_by_role("button", name="Try again").press("Enter")
    expect(text_of(one)).to_have_text("F EY S")
    expect(text_of(one)).not_to_have_class(re.compile("incomplete"))
    expect(one.get_by_role("button", name="Try again")).to_be_hidden()
    expect(one.get_by_role("alert")).to_have_text("")
    expect(one.locator(".word").first).to_be_focused()


def test_a_server_that_is_not_reached_can_be_asked_again_and_a_mistake_can_not(page: Page) -> None:
    one = ask(page)
    page.route(STREAM, lambda route: route.abort(), times=1)
    source(page).fill("face")
    expect(one.get_by_role("alert")).to_have_text("The server can't be reached.")
    one.get_by_role("button", name="Try again").click()
    expect(text_of(one)).to_have_text("F EY S")
    source(page).fill("a" * 100)
    expect(one.get_by_role("alert")).to_contain_text("text is 100")
    expect(one.get_by_role("button", name="Try again")).to_be_hidden()


def test_alternatives_of_a_former_text_do_not_appear(page: Page) -> None:
    one = ask(page)
    held: list[Route] = []
    page.route(GENERATE, lambda route: held.append(route))
    one.locator(".word").nth(1).click()
    page.wait_for_timeout(100)
    assert len(held) == 1
    source(page).fill("face")
    expect(text_of(one)).to_have_text("F EY S")
    answered = [hypothesis("F OW", ["F", "OW"]), hypothesis("F AA", ["F", "AA"])]
    with suppress(Error):  # the page no longer waits for it
        held[0].fulfill(json={"hypotheses": answered})
    page.wait_for_timeout(200)
    expect(one.locator(".alternatives")).to_be_hidden()


def test_while_an_answer_is_on_its_way_it_says_so_and_the_former_one_is_out_of_reach(page: Page) -> None:
    one = ask(page)
    held: list[Route] = []
    page.route(STREAM, lambda route: held.append(route))
    expect(one.get_by_text("Working …", exact=True).first).to_be_hidden()
    source(page).fill("face")
    expect(one.locator(".working")).to_be_visible()
    expect(one.get_by_role("status")).to_have_text("Working …")
    expect(one).to_have_attribute("aria-busy", "true")
    assert one.locator("[data-part=inside]").evaluate("(inside) => inside.inert")
    one.locator(".word").nth(1).click()
    page.wait_for_timeout(200)
    expect(one.locator(".alternatives")).to_be_hidden()
    held[0].continue_()
    expect(text_of(one)).to_have_text("F EY S")
    expect(one.locator(".working")).to_be_hidden()
    assert not one.locator("[data-part=inside]").evaluate("(inside) => inside.inert")


def test_warnings_are_shown_and_go_with_their_answer(page: Page) -> None:
    one = panel(page)
    one.get_by_label("Model").select_option(label="g2p-en")
    source(page).fill("漢字")
    warning = one.get_by_role("list", name="Warnings").get_by_role("listitem")
    expect(warning).to_contain_text(["漢", "the confidence is "])
    expect(one.get_by_role("status")).to_contain_text("Warning: ")
    source(page).fill(WORD)
    expect(text_of(one)).to_have_text(SPOKEN)
    expect(warning).to_have_count(0)
    answered = answer_with(page, "x", ["x"], warnings=["it was <b>cut</b>", "and more"])
    expect(answered.get_by_role("list", name="Warnings").get_by_role("listitem")).to_have_text(
        ["it was <b>cut</b>", "and more"]
    )


def served_before(page: Page, *roles: str) -> list[dict[str, Any]]:
    """Opens the page as if versions with these roles had been served then; returns the bodies of later requests."""

    def former(models: list[Any]) -> list[Any]:
        (model,) = (one for one in models if one["name"] == "g2p-en")
        return [
            {**model, "version": f"{number:012}", "label": str(number), "role": role}
            for number, role in enumerate(roles)
        ]

    reload_with(page, former)
    return asked_for(page)


def test_a_page_that_is_open_while_its_model_is_updated_goes_on(page: Page) -> None:
    asked = served_before(page, "ROLE_STABLE")
    one = panel(page)
    version = one.locator(".facts dd").nth(1)
    expect(version).to_have_text("000000000000")
    source(page).fill(WORD)
    expect(text_of(one)).to_have_text(SPOKEN)
    expect(version).to_have_text(re.compile("^(?!0{12})[0-9a-f]{12}$"))
    assert "version" not in asked[0]
    expect(one.get_by_label("Model").locator("option")).to_have_text(["g2p-en", "tiny"])
    one.locator(".word").nth(1).click()
    expect(one.get_by_role("group", name="Instead of OW")).to_be_visible()


def test_so_does_one_whose_version_is_no_longer_served(page: Page) -> None:
    asked = served_before(page, "ROLE_STABLE", "ROLE_CANARY")
    one = panel(page)
    one.get_by_label("Model").select_option(label="g2p-en 1, canary")
    source(page).fill(WORD)
    expect(text_of(one)).to_have_text(SPOKEN)
    expect(one.get_by_role("alert")).to_have_text("")
    assert [body.get("version") for body in asked] == ["000000000001", None]


def test_so_does_one_whose_settings_were_another_versions(page: Page) -> None:
    def wider(models: list[Any]) -> list[Any]:
        (model,) = (one for one in models if one["name"] == "g2p-en")
        return [{**model, "version": "0" * 12, "defaults": {**model["defaults"], "beamSize": 1000}}]

    reload_with(page, wider)
    one = panel(page)
    one.locator("summary").first.click()
    one.get_by_label("num_hypotheses").fill("8")
    one.get_by_label("num_hypotheses").press("Tab")
    source(page).fill(WORD)
    expect(text_of(one)).to_have_text(SPOKEN)
    expect(one.get_by_role("alert")).to_have_text("")


def test_a_model_that_is_gone_is_told_and_the_others_can_be_chosen(page: Page) -> None:
    reload_with(page, lambda models: [{**one, "name": "former"} for one in models if one["name"] == "tiny"])
    one = panel(page)
    expect(one.get_by_label("Model").locator("option")).to_have_text(["former"])
    source(page).fill(WORD)
    expect(one.get_by_role("alert")).to_contain_text("former")
    expect(one.get_by_label("Model").locator("option")).to_have_text(["g2p-en", "tiny"])
    one.get_by_label("Model").select_option(label="tiny")
    one.get_by_label("Model").select_option(label="g2p-en")
    expect(text_of(one)).to_have_text(SPOKEN)


def test_the_list_of_models_can_be_asked_for_again(page: Page) -> None:
    page.route(MODELS, lambda route: route.abort(), times=1)
    page.reload()
    expect(page.locator("#server")).to_have_text("The server can't be reached.")
    page.route(MODELS, lambda route: route.fulfill(body="<html>", status=502), times=1)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#server")).to_have_text("The server answered with status 502.")
    page.get_by_role("button", name="Try again").press("Enter")
    expect(page.locator("#server")).to_have_text("2 models")
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    ask(page)


def test_the_focus_stays_with_what_was_chosen(page: Page) -> None:
    one = ask(page)
    one.locator(".word").nth(1).press("Enter")
    choices = one.get_by_role("group", name="Instead of OW").get_by_role("button")
    expect(choices.first).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(one.locator("[data-part=prefix]")).to_be_visible()
    expect(one.locator(".word").nth(1)).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(one.locator(".word").nth(2)).to_be_focused()
    page.keyboard.press("Space")
    expect(choices.or_(one.locator(".alternatives button")).first).to_be_focused()
    page.keyboard.press("Escape")
    expect(one.locator(".word").nth(2)).to_be_focused()
    one.get_by_role("button", name="Let it choose").press("Enter")
    expect(text_of(one)).to_have_text(SPOKEN)
    expect(one.locator(".word").first).to_be_focused()


def test_slow_networks_wait_once_for_all_modules() -> None:
    """Each module is named in the page, so that none is first found by reading another one."""
    folder = ROOT / "server" / "http" / "page"
    named = re.findall(r"page/(\w+\.js)", (folder / "index.html").read_text())
    assert sorted(named) == sorted(path.name for path in folder.glob("*.js"))


def test_who_types_on_keeps_the_focus(page: Page) -> None:
    ask(page)
    source(page).press_sequentially("s", delay=10)
    expect(text_of(panel(page))).to_have_text(f"{SPOKEN} Z")
    expect(source(page)).to_be_focused()


def test_headings_do_not_skip_a_level(page: Page) -> None:
    one = ask(page)
    one.get_by_text("About this model").click()
    one.locator(".word").first.click()
    expect(one.locator(".alternatives")).to_be_visible()
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map((one) => +one.tagName[1])")
    assert levels[0] == 1 and max(levels) == 3
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


MARKED = "مُحَمَّد said hi"


def test_marks_belong_to_their_letters_and_arabic_is_not_reversed(page: Page) -> None:
    one = answer_with(page, MARKED, [*"مُحَمَّد", "▁said", "▁hi"])
    words = one.locator(".word")
    expect(words).to_have_text(["مُ", "حَ", "مَّ", "د", "said", "hi"])
    expect(text_of(one)).to_have_attribute("dir", "auto")
    left = [words.nth(index).bounding_box()["x"] for index in range(6)]  # type: ignore[index]
    assert left[0] > left[1] > left[2] > left[3], "from right to left"
    assert left[3] > left[4] and left[4] < left[5], "the words of another script in their own order, at the left"
    asked: list[dict[str, Any]] = []
    page.route(GENERATE, lambda route: (asked.append(route.request.post_data_json), route.abort()))
    words.nth(2).click()
    expect(one.get_by_role("alert")).to_have_text("The server can't be reached.")
    assert asked[0]["decoding"]["targetPrefix"]["tokens"] == [*"مُحَ"], "all symbols before the letter"


GROUPS: list[tuple[str, list[str], list[str]]] = [
    ("F OW", ["F", "OW"], ["F", " OW"]),
    ("the cat, sat", ["▁the", "▁ca", "t", ",", "▁sat"], ["the", " ca", "t", ",", " sat"]),
    ("a\u0301e", ["a", "\u0301", "e"], ["a\u0301", "e"]),
    ("👩\u200d👧 x", ["👩", "\u200d", "👧", "▁x"], ["👩\u200d👧", " x"]),
    ("नि", ["न", "ि"], ["नि"]),
    ("\u1100\u1161\u11a8", ["\u1100", "\u1161", "\u11a8"], ["\u1100\u1161\u11a8"]),
    ("漢 b", ["<0xE6>", "<0xBC>", "<0xA2>", "▁b"], ["漢", " b"]),
    ("a", ["a", "<unk>"], ["a", " <unk>"]),
    ("\u0301", ["\u0301"], ["\u0301"]),
    ("", [], []),
]


def test_symbols_are_grouped_by_the_characters_that_readers_see(page: Page) -> None:
    for text, tokens, groups in GROUPS:
        call = "([text, tokens]) => import('/page/text.js').then((module) => module.grouped(text, tokens))"
        found = page.evaluate(call, [text, tokens])
        assert [f"{one['before']}{one['text']}" for one in found["groups"]] == groups
        covered = [index for one in found["groups"] for index in range(one["first"], one["last"] + 1)]
        assert covered == list(range(len(tokens)))


def test_what_is_written_has_its_own_direction(page: Page) -> None:
    one = ask(page)
    assert source(page).get_attribute("dir") == "auto"
    for part in (one.locator(".best .words"), text_of(one)):
        assert part.first.get_attribute("dir") == "auto"
    one.locator(".word").nth(1).click()
    choice = one.locator(".alternatives button").first
    assert [choice.locator(part).get_attribute("dir") for part in ("b", ".words")] == ["auto", "auto"]
    one.locator(".map .symbol").last.hover()
    expect(one.locator(".beside figcaption bdi").first).to_have_text("end")
