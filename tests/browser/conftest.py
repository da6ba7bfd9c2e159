"""Fixtures: a real browser, Debian's chromium, and a real server."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.paths import ROOT
from tests.server_process import server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MILLISECONDS = 20_000


@pytest.fixture(scope="package", autouse=True)
def patience() -> Iterator[None]:
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    yield
    expect.set_options(timeout=5_000)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        # As root, chromium runs only without its sandbox. It opens only our pages.
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="package")
def address(tiny_bundle_path: Path) -> Iterator[str]:
    """Starts a playground with two models; yields its address."""
    with server(str(ROOT / "models" / "g2p-en"), str(tiny_bundle_path)) as started:
        (url,) = re.findall(r"playground on (\S+);", started.line)
        yield url


@dataclass
class Tab:
    """The tab that tests share, with the messages of its console and the URLs of its requests."""

    page: Page
    messages: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.urls.append(request.url))


@pytest.fixture(scope="package")
def tab(browser: Browser) -> Iterator[Tab]:
    context = browser.new_context(reduced_motion="reduce")
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MILLISECONDS)
    yield Tab(opened)
    context.close()


@pytest.fixture
def page(tab: Tab, address: str) -> Iterator[Page]:
    """Opens the playground. Nothing may appear in its console, and requests may go only to its server."""
    tab.page.set_viewport_size({"width": 1280, "height": 720})
    tab.page.mouse.move(0, 0)
    tab.page.goto(address)
    yield tab.page
    tab.page.unroute_all(behavior="ignoreErrors")
    messages, urls = tab.messages.copy(), tab.urls.copy()
    tab.messages.clear()
    tab.urls.clear()
    # Chromium itself logs that an answer is an error.
    assert not [message for message in messages if not message.startswith("Failed to load resource")]
    assert all(url.startswith(address) for url in urls)
