"""Examples and settings of the playground, and answers that are shared, kept and compared."""

import json
import re
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, Page, expect

from attendant.runtime.bundle.bundle import open_bundle
from tests.browser.playground import SPOKEN, WORD, ask, panel_of, reload_with, request_bodies, source, text_of
from tests.paths import ROOT


def test_an_empty_page_offers_examples(page: Page) -> None:
    panel = panel_of(page)
    examples = page.get_by_role("group", name="Examples").get_by_role("button")
    bundle = open_bundle(ROOT / "models" / "g2p-en")
    (word, sounds), *_ = bundle.examples()
    expect(panel.locator(".purpose")).to_have_text(bundle.description)
    expect(examples).to_have_count(3)
    expect(examples.first).to_have_text(f"{word} → {sounds}")
    examples.first.click()
    expect(text_of(panel)).to_have_text(sounds)
    expect(source(page)).to_have_value(word)
    expect(examples.first.locator(".target")).to_be_hidden()
    panel.get_by_label("Model").select_option(label="tiny")
    expect(examples.first).not_to_contain_text(word)


def test_the_address_holds_all_settings_shown(page: Page, browser: Browser) -> None:
    page.get_by_label("Compare two").check()
    first = ask(page)
    second = panel_of(page, 1)
    second.get_by_label("Model").select_option(label="g2p-en")
    second.locator("summary").first.click()
    second.get_by_label("beam_size").fill("8")
    second.get_by_label("beam_size").press("Tab")
    first.locator(".word").nth(1).click()
    choice = first.get_by_role("group", name="Instead of OW1").get_by_role("button").nth(1)
    choice.click()
    expect(first.locator("[data-part=prefix]")).to_be_visible()
    changed = text_of(first).inner_text()
    second.get_by_role("group", name="Source symbols").locator(".symbol").nth(5).click()
    expect(second.locator("[data-part=masked]")).to_contain_text("Not looked at: m")
    second.get_by_text("About this model").click()
    expect(page).to_have_url(re.compile("open.2=facts"))
    hidden = text_of(second).inner_text()
    context = browser.new_context()
    other = context.new_page()
    other.goto(page.url)
    expect(source(other)).to_have_value(WORD)
    expect(text_of(panel_of(other))).to_have_text(changed)
    expect(text_of(panel_of(other, 1))).to_have_text(hidden)
    expect(panel_of(other, 1).locator("[data-part=masked]")).to_contain_text("Not looked at: m")
    expect(panel_of(other, 1).locator("[data-part=summary]")).to_have_text("beam_size 8")
    expect(panel_of(other, 1).locator(".facts")).to_have_attribute("open", "")
    assert other.url == page.url
    context.close()


def test_a_damaged_address_opens_a_page_that_answers_or_names_the_mistake(page: Page, address: str) -> None:
    panel = panel_of(page)
    alert = panel.get_by_role("alert").filter(has_text="beam_size")
    for bad in ("prefix=F", "model=none&prefix={}", "masked=[99]", "beam_size=wide", "%E0%A4%A", "a.2", "=&=.2"):
        page.goto(f"{address}?{quote(bad)}#text={WORD}&{bad}")
        expect(alert.or_(text_of(panel).filter(has_text=re.compile(r"\w"))).first).to_be_visible()


def test_a_link_to_a_model_that_is_not_served_says_so(page: Page, address: str) -> None:
    panel = panel_of(page)
    note = panel.get_by_text("of this link")
    for link, name in (
        ("model=former", "The model former"),
        ("model=g2p-en&version=0", "Version 0 of the model g2p-en"),
    ):
        page.goto(f"{address}?{quote(link)}#text={WORD}&{link}")
        expect(text_of(panel)).to_have_text(SPOKEN)
        expect(note).to_have_text(f"{name} of this link is not served here; g2p-en answers instead.")
    panel.get_by_label("Model").select_option(label="tiny")
    expect(note).to_be_hidden()
    page.goto(f"{address}?tiny#text={WORD}&model=tiny&version=0")
    expect(panel.get_by_label("Model").locator("option:checked")).to_have_text("tiny")


def test_links_and_answers_are_copied(browser: Browser, address: str) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(address)
    panel = ask(page)
    panel.get_by_role("button", name="Copy the answer").click()
    expect(panel.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == SPOKEN
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#share")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    assert f"text={WORD}" in page.url
    context.close()


def test_an_answer_is_kept_while_the_text_is_edited(page: Page) -> None:
    panel = ask(page)
    panel.get_by_role("button", name="Keep to compare").click()
    expect(page.locator(".panel")).to_have_count(2)
    expect(source(page)).to_be_focused()
    source(page).fill("phonemes")
    second = panel_of(page, 1)
    expect(text_of(second)).to_have_text(f"{SPOKEN} Z")
    expect(second.locator(".word.differs")).to_have_text(["Z"])
    expect(second.locator("[data-part=difference]")).to_have_text("1 symbol of 6 not in the kept answer: marked.")
    expect(text_of(panel)).to_have_text(SPOKEN)
    expect(panel.locator("[data-part=keptText]")).to_have_text(WORD)
    page.reload()
    expect(text_of(second)).to_have_text(f"{SPOKEN} Z")
    expect(text_of(panel)).to_have_text(SPOKEN)
    expect(panel.locator("[data-part=keptText]")).to_have_text(WORD)
    panel.get_by_role("button", name="Follow the text again").click()
    expect(text_of(panel)).to_have_text(f"{SPOKEN} Z")
    expect(panel.locator("[data-part=kept]")).to_be_hidden()


def test_settings_are_all_options_with_the_names_that_errors_have(page: Page) -> None:
    panel = ask(page)
    panel.locator("summary").first.click()
    schemas = page.request.get(f"{page.url.partition('#')[0]}openapi.json").json()["components"]["schemas"]
    own = {"targetPrefix", "sampling", "alternatives", "maskedSourcePositions", "attention", "tokenLogProbs", "trace"}
    names = [
        re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
        for message in ("DecodingOptions", "SamplingOptions", "OutputOptions")
        for name in schemas[message]["properties"]
        if name not in own
    ]
    assert len(names) > 15
    expect(panel.locator(".field label")).to_have_text(names)
    panel.get_by_label("beam_size").fill("999")
    panel.get_by_label("beam_size").press("Tab")
    expect(panel.get_by_role("alert")).to_contain_text("beam_size is 999")
    panel.get_by_role("button", name="Back to the model's defaults").click()
    expect(text_of(panel)).to_have_text(SPOKEN)
    bodies = request_bodies(page)
    panel.get_by_label("num_hypotheses").fill("7")
    panel.get_by_label("num_hypotheses").press("Tab")
    expect(panel.locator("[data-part=best] button")).to_have_count(7)
    expect(panel.get_by_label("beam_size")).to_have_attribute("placeholder", "7")
    assert bodies[-1]["decoding"] == {"numHypotheses": 7, "beamSize": 7}
    panel.get_by_label("suppress_unk").check()
    panel.get_by_label("target_prefix_text").fill("F")
    panel.get_by_label("target_prefix_text").press("Tab")
    expect(panel.locator("[data-part=summary]")).to_have_text(
        "num_hypotheses 7, suppress_unk true, target_prefix_text F"
    )
    assert bodies[-1]["decoding"]["suppressUnk"] is True


def test_an_option_that_is_the_models_default_can_be_switched_off(page: Page) -> None:
    defaults = {"splitSentences": True}
    reload_with(page, lambda models: [each | {"defaults": each["defaults"] | defaults} for each in models])
    panel, bodies = ask(page), request_bodies(page)
    panel.locator("summary").first.click()
    option, summary = panel.get_by_label("split_sentences"), panel.locator("[data-part=summary]")
    expect(option).to_be_checked()
    option.uncheck()
    expect(summary).to_have_text("split_sentences false")
    option.check()
    expect(summary).not_to_contain_text("split_sentences")
    expect(text_of(panel)).to_have_text(SPOKEN)
    assert [body["decoding"].get("splitSentences") for body in bodies] == [False, None]
    panel.locator("[data-open=tree] summary").click()
    expect(panel.get_by_text("several sentences is answered as a whole")).to_be_visible()


def test_options_that_change_a_text_leave_alternatives_possible(page: Page) -> None:
    panel = ask(page, "Go. Hi")
    panel.locator("summary").first.click()
    panel.get_by_label("protect_spans").check()
    panel.get_by_label("split_sentences").check()
    expect(panel).not_to_have_attribute("aria-busy", "true")  # meanwhile no symbol can be pressed
    panel.get_by_role("group", name="Source symbols").locator(".symbol").nth(3).click()
    masked = panel.locator("[data-part=masked]")
    expect(masked).to_contain_text("Not looked at: h")
    panel.locator(".word").nth(1).click()
    panel.locator(".alternatives button").nth(1).click()
    expect(panel.locator("[data-part=prefix]")).to_be_visible()
    expect(masked).to_be_hidden()  # positions in parts are not those in the whole text
    expect(panel.get_by_role("alert")).to_have_text("")


def test_a_model_that_takes_tokens_gets_those_between_blanks(page: Page) -> None:
    def changed(models: list[Any]) -> list[Any]:
        for model in models:
            manifest = json.loads(model["manifestJson"])
            manifest["source"]["tokens_only"] = True
            model["manifestJson"] = json.dumps(manifest)
        return models

    reload_with(page, changed)
    bodies = request_bodies(page)
    panel = ask(page, " ".join(WORD))
    expect(text_of(panel)).to_have_text(SPOKEN)
    assert bodies[-1]["tokens"] == {"tokens": list(WORD)} and "text" not in bodies[-1]
    panel.locator("[data-open=growth] summary").click()
    source(page).fill("a b")
    expect(text_of(panel)).not_to_have_text(SPOKEN)  # its answer ends a measurement that began before
    panel.get_by_role("button", name="Measure").click()
    expect(panel.locator(".growth li")).to_contain_text(["1 word", "2 words"])


def test_the_probability_of_being_right_is_shown_if_it_is_calibrated(page: Page) -> None:
    panel = ask(page)
    note = panel.locator("[data-part=confidence]")
    expect(note).to_have_text(re.compile(r"^Right with a probability of \d+ %, as calibrated on held-out texts\.$"))
    panel.get_by_label("Model").select_option(label="tiny")
    expect(note).to_be_hidden()
