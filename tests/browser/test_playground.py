"""Tests of the playground: typing, inspecting and comparing answers, by mouse and by keyboard."""

import math
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.playground import SPOKEN, WORD, answer_with, ask, panel_of, source, text_of
from tests.paths import ROOT
from tests.server_process import server

TOKEN = "search-token-0123456789"


def test_an_answer_appears_while_typing(page: Page) -> None:
    panel = panel_of(page)
    panel.get_by_label("Model").select_option(label="g2p-en")
    source(page).press_sequentially(WORD, delay=10)
    expect(text_of(panel)).to_have_text(SPOKEN)
    expect(panel.get_by_role("status")).to_have_text(f"Answer: {SPOKEN}")
    expect(panel.locator("[data-part=measures]")).to_have_text(re.compile(r"^[\d.]+ ms · \d+ steps$"))
    page.get_by_role("link", name="Skip to the answers").press("Enter")
    expect(page.locator("#answers")).to_be_focused()
    expect(page).to_have_url(re.compile(f"#text={WORD}"))


# Streams two pieces of an answer, the second in two parts, before the server's own answer.
PIECES = """() => {
    const plain = window.fetch;
    const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
    window.fetch = async (path, options) => {
      const response = await plain(path, options);
      if (!path.includes("stream")) return response;
      const delta = (text) => `event: delta\\ndata: ${JSON.stringify({ delta: { tokens: [], text } })}\\n\\n`;
      const [first, second] = [delta("F"), delta(" OW1")];
      return new Response(new ReadableStream({
        async start(controller) {
          for (const piece of [first, second.slice(0, 9), second.slice(9)]) {
            controller.enqueue(new TextEncoder().encode(piece));
            await wait(100);
          }
          controller.enqueue(new Uint8Array(await response.arrayBuffer()));
          controller.close();
        },
      }));
    };
}"""


def test_an_answer_grows(page: Page) -> None:
    panel = panel_of(page)
    panel.get_by_label("Model").select_option(label="g2p-en")
    page.evaluate(PIECES)
    page.evaluate(
        """() => {
            window.seen = [];
            const text = document.querySelector("[data-part=text]");
            new MutationObserver(() => window.seen.push(text.textContent)).observe(text, { childList: true });
        }"""
    )
    source(page).fill(WORD)
    expect(panel.get_by_role("status")).to_have_text(f"Answer: {SPOKEN}")
    assert page.evaluate("window.seen")[:2] == ["F", "F OW1"]
    expect(text_of(panel)).to_have_text(SPOKEN)


def test_lines_of_an_answer_are_lines(page: Page) -> None:
    words = answer_with(page, "un\ndeux", ["un", "deux"]).locator(".word")
    first, second = (words.nth(index).bounding_box() or {} for index in range(2))
    assert first["y"] < second["y"]


def test_other_hypotheses_have_scores_and_can_be_selected(page: Page) -> None:
    panel = ask(page)
    rivals = panel.locator(".best button")
    expect(rivals).to_have_count(4)
    expect(rivals.first).to_have_attribute("aria-pressed", "true")
    shown = re.fullmatch(r"(\d+) % · score −(\d\.\d\d)", rivals.first.locator(".score").inner_text())
    assert shown is not None
    assert int(shown[1]) == pytest.approx(100 * math.exp(-float(shown[2])), abs=1), "no length penalty"
    second = rivals.nth(1).locator(".words").inner_text()
    rivals.nth(1).click()
    expect(text_of(panel)).to_have_text(second)


def test_a_selected_symbol_shows_its_attention_on_the_other_side(page: Page) -> None:
    panel = ask(page)
    caption = panel.locator(".beside figcaption")
    targets = panel.get_by_role("group", name="Target symbols").locator(".symbol")
    sources = panel.get_by_role("group", name="Source symbols").locator(".symbol")
    expect(targets).to_have_count(6)
    expect(sources).to_have_count(8)
    targets.nth(4).hover()
    expect(caption).to_have_text(re.compile(r"^M looks at m \d+ %"))
    assert panel.locator(".cell.dim").count() == 5 * 8
    sources.nth(5).focus()
    expect(caption).to_have_text(re.compile(r"^m is looked at by M \d+ %"))
    page.keyboard.press("ArrowLeft")
    expect(caption).to_have_text(re.compile(r"^e is looked at by"))
    source(page).focus()
    page.mouse.move(0, 0)
    expect(caption).to_have_text(re.compile("^Point at a symbol"))


def test_two_settings_and_two_models_are_compared_side_by_side(page: Page) -> None:
    ask(page)
    page.get_by_label("Compare two").check()
    second = ask(page, number=1)
    second.locator("summary").first.click()
    second.get_by_label("seed").fill("9007199254740993")
    second.get_by_label("temperature").fill("2")
    second.get_by_label("temperature").press("Tab")
    expect(second.locator("[data-part=summary]")).to_have_text("sampling.seed 9007199254740993, sampling.temperature 2")
    expect(text_of(second)).not_to_have_text(re.compile(f"^({SPOKEN})?$"))
    first = panel_of(page, 0)
    expect(text_of(first)).to_have_text(SPOKEN)
    second.get_by_label("Model").select_option(label="tiny")
    second.get_by_text("About this model").click()
    expect(second.locator(".facts dd").first).to_have_text("tiny")


def test_without_answers_while_typing_the_shortcut_requests_one(page: Page) -> None:
    panel = panel_of(page)
    panel.get_by_label("Model").select_option(label="g2p-en")
    page.get_by_label("Answer while I type").uncheck()
    source(page).fill(WORD)
    page.wait_for_timeout(300)
    expect(text_of(panel)).to_have_text("")
    source(page).press("Control+Enter")
    expect(text_of(panel)).to_have_text(SPOKEN)


def test_the_page_requests_a_token(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"search {TOKEN}\n")
    with server(str(ROOT / "models" / "g2p-en"), "--tokens", str(tmp_path / "tokens")) as running:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://localhost:{running.metrics_port}/")
        field = page.get_by_label("This server asks for a token")
        expect(field).to_be_focused()
        field.fill("something-else-entirely")
        field.press("Enter")
        expect(page.locator("#server")).to_contain_text("the token is not known here")
        field.fill("“no-header-holds-it”")
        assert not field.evaluate("(field) => field.checkValidity()")
        field.fill(f" {TOKEN} ")
        field.press("Enter")
        expect(field).to_be_hidden()
        source(page).fill(WORD)
        expect(text_of(panel_of(page))).to_have_text(SPOKEN)
        context.close()


def test_the_page_shows_a_models_facts_quality_and_certificate(page: Page) -> None:
    panel = ask(page)
    panel.get_by_text("About this model").click()
    facts = panel.locator(".facts")
    expect(facts).to_contain_text("Decodings identical")
    expect(facts).to_contain_text("yes, bit for bit")
    expect(facts).to_contain_text("12,606 examples")
    expect(facts.get_by_text("WER", exact=True)).to_have_count(1)
