"""Tests of an answer's details: its steps, the beam's tree, masked attention, and answers to a growing text."""

import json
import math
import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.browser.playground import (
    SPOKEN,
    STREAM,
    WORD,
    answer_with,
    ask,
    hypothesis,
    panel_of,
    reload_with,
    request_bodies,
    source,
    text_of,
)


def opened(panel: Locator, name: str) -> Locator:
    """Opens a section of a panel and returns it."""
    section = panel.locator(f"[data-open={name}]")
    section.locator("summary").click()
    return section


def without_attention(page: Page) -> None:
    """Opens the page as if its models had no attention."""

    def changed(models: list[Any]) -> list[Any]:
        for model in models:
            manifest = json.loads(model["manifestJson"])
            for graphs in manifest["graphs"].values():
                outputs = graphs["decoder_step"]["outputs"]
                graphs["decoder_step"]["outputs"] = [output for output in outputs if output["name"] != "attention"]
            model["manifestJson"] = json.dumps(manifest)
        return models

    reload_with(page, changed, times=None)


def test_each_step_has_its_numbers_and_formulas(page: Page) -> None:
    panel = ask(page)
    bodies = request_bodies(page)
    steps = opened(panel, "steps")
    slider = steps.get_by_role("slider", name="Step")
    expect(slider).to_have_attribute("max", "6")
    assert bodies[-1]["output"]["trace"] > 0
    expect(slider).to_have_attribute("aria-valuetext", re.compile(r"^1 of 6: F, \d+ %$"))
    formulas = steps.locator(".formula")
    expect(formulas.first).to_have_text("e1j = s1 · W hj")
    for _ in range(4):
        slider.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", re.compile("^5 of 6: M"))
    expect(steps.locator(".written .now")).to_have_text("M")
    expect(formulas.nth(1)).to_have_text("α5j = exp e5j / Σk exp e5k")
    weights = steps.get_by_role("list", name="Weights").get_by_role("listitem")
    shares = [share(text) for text in weights.locator("small:first-child").all_inner_texts()]
    assert len(shares) == 8 and sum(shares) == pytest.approx(100, abs=1)
    expect(weights.nth(5).locator("bdi")).to_have_text("m")
    assert shares[5] == max(shares)
    expect(steps.locator(".drawn p").filter(has_text="h(m)")).to_be_visible()
    shares = [share(text) for text in steps.locator(".distribution li > span:not(.note)").all_inner_texts()]
    assert sum(shares) == pytest.approx(100, abs=1)
    expect(steps.locator(".distribution .chosen b")).to_have_text("M")
    slider.press("End")
    expect(steps.locator(".distribution .chosen b")).to_have_text("end")
    score = panel.locator(".best .score").first.inner_text().rpartition(" ")[2]
    expect(steps.get_by_text("log P so far")).to_have_text(re.compile(rf"= {re.escape(score)}$"))


def share(text: str) -> float:
    return float(text.removeprefix("< ").removesuffix(" %"))


def test_play_advances_the_steps(browser: Browser, address: str) -> None:
    context = browser.new_context()  # a clock that is installed stays
    page = context.new_page()
    page.goto(address)
    panel = ask(page)
    steps = opened(panel, "steps")
    page.clock.install()
    steps.get_by_role("button", name="Play").click()
    slider = steps.get_by_role("slider", name="Step")
    page.clock.run_for(2500)
    expect(slider).to_have_value("3")
    steps.get_by_role("button", name="Pause").click()
    page.clock.run_for(5000)
    expect(slider).to_have_value("3")
    expect(steps.get_by_role("button", name="Play")).to_be_visible()
    context.close()


def test_a_model_without_attention_has_one_context_vector(page: Page) -> None:
    without_attention(page)
    panel = panel_of(page)
    panel.get_by_label("Model").select_option(label="g2p-en")
    source(page).fill(WORD)
    expect(text_of(panel)).to_have_text(SPOKEN)
    expect(panel.locator(".map svg")).to_have_count(0)
    steps = opened(panel, "steps")
    expect(steps).to_contain_text("8 symbols in 512 numbers: 64 for each. A text of twice the length has 32.")
    expect(steps.locator(".distribution .chosen b")).to_have_text("F")


def with_architecture(page: Page, changes: dict[str, str], *, is_own: bool = True) -> Locator:
    """Opens the steps of g2p-en's answer as if its model had another architecture."""

    def changed(models: list[Any]) -> list[Any]:
        return [model | {"architecture": (model["architecture"] if is_own else {}) | changes} for model in models]

    reload_with(page, changed)
    return opened(ask(page), "steps")


@pytest.mark.parametrize(
    ("changes", "formulas"),
    [
        (
            {"attention.score": "additive", "attention.coverage": "true", "decoder.copying": "true"},
            [
                "e1j = v · tanh(W s1 + U hj + V κ0,j)",
                "κ1j = κ0,j + α1j / φj",
                "p(y1) = g1 softmax(W r(s1, c1)) + (1 − g1) Σj: xj = y1 α1j",
            ],
        ),
        (
            {
                **{"attention.score": "scaled_dot", "attention.key_size": "8", "attention.value_size": "8"},
                **{"attention.query": "previous", "decoder.readout": "maxout"},
            },
            ["e1j = W s0 · U hj / √A", "c1 = Σj α1j V hj", "p(y1) = softmax(W r(s1, y0, c1))"],
        ),
    ],
)
def test_formulas_are_those_of_the_architecture(page: Page, changes: dict[str, str], formulas: list[str]) -> None:
    steps = with_architecture(page, changes)
    for text in formulas:
        expect(steps.locator(".formula").get_by_text(text, exact=True)).to_be_visible()
    expect(steps.get_by_text("g is the probability")).to_have_count(int("decoder.copying" in changes))


def test_a_model_of_another_kind_has_its_weights_without_formulas(page: Page) -> None:
    steps = with_architecture(page, {}, is_own=False)
    expect(steps.locator("h3")).to_have_text(["1. Where to look: weights", "2. What comes next: the distribution"])
    expect(steps.locator(".formula")).to_have_text(["log P = Σi ≤ 1 log p(yi)"])
    expect(steps.get_by_role("list", name="Weights").get_by_role("listitem").first).to_have_text("100 %p")
    symbols = panel_of(page).get_by_role("group", name="Source symbols")
    expect(symbols.get_by_role("img")).to_have_count(8)  # with a mask, a server refuses such a model
    expect(panel_of(page).locator("[data-part=caption]")).not_to_contain_text("hide")


def test_an_unknown_symbol_that_was_replaced_is_listed_once(page: Page) -> None:
    candidates = [
        {"token": token, "logProb": math.log(share), "total": math.log(share), "fate": fate}
        for token, share, fate in (("x", 0.7, "FATE_RANK"), ("<unk>", 0.2, "FATE_LIVES"))
    ]
    end = {"token": "</s>", "logProb": 0.0, "total": math.log(0.2), "fate": "FATE_ENDED"}
    live = [{"token": "", "candidates": candidates}, {"token": "<unk>", "parent": 0, "candidates": [end]}]
    search = {
        "steps": [{"live": [each]} for each in live],
        "ended": [{"step": 1, "live": 0, "hypothesis": 0}],
        "reason": "SEARCH_END_EOS",
    }
    answer = hypothesis("a", ["a"]) | {"tokenLogProbs": [math.log(0.2), 0.0]}
    panel = answer_with(page, "a", ["a"], hypotheses=[answer], trace={"searches": [search]})
    lines = opened(panel, "steps").locator(".distribution li")
    expect(lines).to_have_text(["x70 %cut: the beam is full of better ones", "<unk>20 %taken", "others10 %"])


def test_a_beam_is_a_tree(page: Page) -> None:
    panel = ask(page)
    tree = opened(panel, "tree")
    nodes = tree.locator(".node")
    expect(nodes.first).to_be_visible()
    caption = tree.locator("figcaption")
    ended = re.compile(r"^The search ended with step \d+: nothing that went on could still score higher")
    expect(caption).to_have_text(ended)
    way = tree.locator(".node.chosen")
    expect(way).to_have_count(6)
    assert way.locator("text").all_text_contents() == [*SPOKEN.split(), "end"]
    assert tree.locator(".node.ended").count() >= 4
    cut = tree.locator(".node.cut").first
    expect(cut).to_have_attribute("aria-label", re.compile(r", \S+ ?\S* %, log P −[\d.]+, cut: "))
    cut.hover()
    expect(caption).to_contain_text("cut: the beam is full of better ones")
    nodes.first.focus()
    page.keyboard.press("End")
    expect(caption).not_to_have_text(ended)
    widths = [float(path.get_attribute("stroke-width") or 0) for path in tree.locator(".branch").all()]
    assert all(1 <= width <= 10 for width in widths)
    panel.locator("[data-part=best] button").nth(2).click()
    expect(tree.locator(".node.ended.chosen")).to_have_count(1)
    third = panel.locator("[data-part=best] button").nth(2).locator(".words").inner_text()
    assert [text for text in tree.locator(".node.chosen text").all_text_contents() if text != "end"] == third.split()


def test_a_symbol_is_hidden_from_attention(page: Page) -> None:
    panel = ask(page)
    bodies = request_bodies(page)
    m = panel.get_by_role("group", name="Source symbols").locator(".symbol").nth(5)
    m.click()
    note = panel.locator("[data-part=masked]")
    expect(note).to_contain_text("Not looked at: m")
    assert bodies[-1]["decoding"]["maskedSourcePositions"] == [5]
    expect(m).to_have_attribute("aria-pressed", "true")
    expect(m).to_have_attribute("aria-label", "m is hidden")
    expect(text_of(panel)).not_to_have_text(SPOKEN)
    expect(panel.locator(".cell")).to_have_count(5 * 7)
    note.get_by_role("button", name="Look at all").click()
    expect(text_of(panel)).to_have_text(SPOKEN)
    m.press("Enter")
    expect(note).to_be_visible()
    source(page).fill("phonemes")
    expect(note).to_be_hidden()


def test_measure_lists_the_answer_to_every_prefix(page: Page) -> None:
    panel = ask(page)
    growth = opened(panel, "growth")
    growth.get_by_role("button", name="Measure").click()
    rows = growth.get_by_role("listitem")
    expect(rows).to_have_count(len(WORD))
    expect(rows.last).to_contain_text(SPOKEN)
    expect(rows.last).to_contain_text("7 characters")
    source(page).fill("(hi")
    expect(rows).to_have_count(0)
    panel.get_by_role("group", name="Source symbols").locator(".symbol").nth(1).click()
    expect(panel.locator("[data-part=masked]")).to_be_visible()
    growth.get_by_role("button", name="Measure").click()
    expect(rows).to_contain_text(["2 characters", "3 characters"])  # without "(", which has no symbol
    bodies = request_bodies(page)
    for text, beginnings in (("e\u0301🇫🇷", ["e\u0301", "e\u0301🇫🇷"]), ("a b\nc d", ["a", "a b", "a b\nc", "a b\nc d"])):
        source(page).fill(text)
        expect(rows).to_have_count(0)
        growth.get_by_role("button", name="Measure").click()
        expect(rows).to_have_count(len(beginnings))
        assert [request["text"] for request in bodies[-1]["requests"]] == beginnings


def test_attention_too_large_to_send_is_left_out(page: Page) -> None:
    def refused(route: Route) -> None:
        if route.request.post_data_json["output"]["attention"]:
            wrong = {"fieldViolations": [{"field": "output.attention", "description": "is true"}]}
            problem = {"code": "INVALID_ARGUMENT", "detail": "output.attention is true", "details": [wrong]}
            route.fulfill(status=400, json=problem)
        else:
            route.continue_()

    page.route(STREAM, refused)
    panel = panel_of(page)
    panel.get_by_label("Model").select_option(label="g2p-en")
    source(page).fill(WORD)
    expect(text_of(panel)).to_have_text(SPOKEN)
    expect(panel.locator("[data-part=caption]")).to_contain_text("too large")
    steps = opened(panel, "steps")
    expect(steps.locator(".distribution .chosen b")).to_have_text("F")
    expect(steps).not_to_contain_text("This model has no attention")


def test_a_search_too_long_to_trace_is_answered_without(page: Page) -> None:
    def refused(route: Route) -> None:
        body: dict[str, Any] = route.request.post_data_json
        if "trace" in body.get("output", {}):
            problem = {"code": "INVALID_ARGUMENT", "title": "Bad", "detail": "output.trace is 6, and too large"}
            route.fulfill(status=400, json=problem)
        else:
            route.continue_()

    panel = ask(page)
    page.route(STREAM, refused)
    tree = opened(panel, "tree")
    expect(tree).to_contain_text("too long to be shown")
    expect(text_of(panel)).to_have_text(SPOKEN)


def test_steps_of_a_right_to_left_answer_have_their_order_and_numbers(page: Page) -> None:
    tokens = ["كَتَبَ", "\u202eالوَلَدُ", "د"]  # the second one begins with an override
    attention = {"rows": 4, "columns": 4, "weights": [0.5, 0.25, 0.15, 0.1] * 4}
    answers = [hypothesis("", tokens) | {"attention": attention, "tokenLogProbs": [-0.5] * 4}]
    panel = answer_with(page, "(empty)", tokens, sourceTokens=["<s>", "كتب", "الدرس", "</s>"], hypotheses=answers)
    steps = opened(panel, "steps")
    for parts in (steps.locator(".written > *"), steps.locator(".weights bdi"), panel.locator(".map .symbol text")):
        expect(parts.first).to_be_visible()
        lefts = parts.evaluate_all("all => all.slice(0, 4).map((each) => each.getBoundingClientRect().left)")
        assert lefts == sorted(lefts, reverse=True)
    expect(steps.locator(".written > *")).to_have_text([*tokens, "end"])
    numbers = steps.locator(".weights small").evaluate_all("all => all.map((each) => getComputedStyle(each).direction)")
    assert set(numbers) == {"ltr"}


def test_long_symbols_do_not_overlap(page: Page) -> None:
    attention = {"rows": 2, "columns": 3, "weights": [0.5, 0.25, 0.25] * 2}
    answers = [hypothesis(SPOKEN, ["a"]) | {"attention": attention}]
    panel = answer_with(page, SPOKEN, ["a"], sourceTokens=["internationalization"] * 3, hypotheses=answers)
    labels = opened(panel, "steps").locator(".weights bdi")
    expect(labels).to_have_count(3)
    boxes = labels.evaluate_all("all => all.map((each) => each.getBoundingClientRect().toJSON())")
    edges = [edge for box in boxes for edge in (box["left"], box["right"])]
    assert edges == sorted(edges)


def test_long_words_do_not_widen_the_page(page: Page) -> None:
    word = "w" * 300

    def changed(models: list[Any]) -> list[Any]:
        return [model | {"name": word, "description": f"{word}."} for model in models[:1]]

    reload_with(page, changed, times=None)
    page.set_viewport_size({"width": 390, "height": 900})
    panel = answer_with(page, word, [word], warnings=[word])
    for name in ("steps", "facts"):
        opened(panel, name)
    expect(panel.locator(".distribution li").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.route(STREAM, lambda route: route.fulfill(status=400, json={"code": "INVALID_ARGUMENT", "detail": word}))
    source(page).fill("b")
    expect(panel.get_by_role("alert")).to_have_text(word)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_two_answers_with_all_their_parts_fit(page: Page) -> None:
    page.get_by_label("Compare two").check()
    panel = ask(page)
    panel_of(page, 1).get_by_label("Model").select_option(label="g2p-en")
    for number in (0, 1):
        for name in ("steps", "tree", "growth", "facts"):
            opened(panel_of(page, number), name)
        panel_of(page, number).get_by_role("button", name="Measure").click()
        expect(panel_of(page, number).locator(".growth li").first).to_be_visible()
    expect(panel.locator(".distribution li").first).to_be_visible()
    wide = """() => [...document.querySelectorAll(".panel")].flatMap((panel) => {
        const { right } = panel.getBoundingClientRect();
        return [...panel.querySelectorAll(".stages *, .growth *, .facts *")]
            .filter((each) => !each.closest(".weights") && each.getBoundingClientRect().right > right + 1)
            .map((each) => each.outerHTML.slice(0, 80));
    })"""
    for width in (1080, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(wide) == []


def test_a_printed_page_is_light_and_has_whole_maps(page: Page) -> None:
    panel = ask(page, "characteristically")
    opened(panel, "steps")
    page.set_viewport_size({"width": 420, "height": 900})
    expect(panel.locator(".weights")).to_be_visible()
    wide = """() => [...document.querySelectorAll(".map, .weights")]
        .filter((each) => each.scrollWidth > each.clientWidth + 1).length"""
    assert page.evaluate(wide) == 2
    background = panel.evaluate("(panel) => getComputedStyle(panel).backgroundColor")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(wide) == 0
    assert panel.evaluate("(panel) => getComputedStyle(panel).backgroundColor") == background
    page.emulate_media(media="screen", color_scheme="light")
