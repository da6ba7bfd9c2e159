"""Tests of the playground's accessibility with axe-core, in each of the playground's states."""

import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.playground import ask, source

AXE = "axe-core@4.10.3"


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Installs axe-core from npm; returns its program."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here: apt-get install npm")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), AXE]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if installed.returncode:
        pytest.skip(f"{AXE} can't be installed: {installed.stderr.strip()[-200:]}")
    return Path(folder, "node_modules/axe-core/axe.min.js").read_text()


def violations(page: Page, axe: str) -> list[str]:
    page.evaluate(axe)
    results = page.evaluate("axe.run(document, { resultTypes: ['violations'] }).then((result) => result.violations)")
    return [f"{result['id']}: {[node['html'][:200] for node in result['nodes']]}" for result in results]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_violates_no_accessibility_rule(browser: Browser, address: str, axe: str, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(address)
    expect(page.locator(".panel")).to_be_visible()
    assert not violations(page, axe), "empty"
    panel = ask(page)
    assert not violations(page, axe), "an answer"
    panel.locator(".word").nth(1).click()
    expect(panel.locator(".alternatives")).to_be_visible()
    panel.locator("summary").first.click()
    panel.get_by_text("About this model").click()
    assert not violations(page, axe), "alternatives, settings and facts"
    for name in ("steps", "tree", "growth"):
        panel.locator(f"[data-open={name}] summary").click()
    expect(panel.locator(".node").first).to_be_visible()
    panel.get_by_role("button", name="Measure").click()
    expect(panel.locator(".growth li").first).to_be_visible()
    panel.get_by_role("group", name="Source symbols").get_by_role("button").first.click()
    expect(panel.locator("[data-part=masked]")).to_be_visible()
    assert not violations(page, axe), "steps, tree, growth, and a hidden symbol"
    source(page).fill("漢字")
    expect(panel.get_by_role("listitem").filter(has_text="漢").first).to_be_visible()
    assert not violations(page, axe), "a warning"
    page.route("**/v1/generate?stream=1", lambda route: route.abort())
    source(page).fill("face")
    expect(panel.get_by_role("button", name="Try again")).to_be_visible()
    assert not violations(page, axe), "a problem"
    page.unroute("**/v1/generate?stream=1")
    panel.get_by_role("button", name="Try again").click()
    panel.get_by_role("button", name="Keep to compare").click()
    source(page).fill("faces")
    expect(page.locator(".word.differs").first).to_be_visible()
    assert not violations(page, axe), "a kept answer and another one"
    context.close()
