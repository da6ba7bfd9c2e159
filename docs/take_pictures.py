"""Takes the pictures of the playground: python docs/take_pictures.py [CHROMIUM]."""

import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
SIZE = {"width": 1080, "height": 860}
WORD = "knowledgeable"


def main(chromium: str = "/usr/bin/chromium") -> None:
    """Serves the model that comes along, and looks at it in light and dark."""
    command = [sys.executable, "-m", "server", "models/g2p-en", "--port", "0", "--metrics-port", "0"]
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        assert server.stdout is not None
        address = re.search(r"playground on (\S+);", server.stdout.readline())
        assert address is not None, "the server does not serve"
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme, viewport=SIZE)
            page.goto(address[1])
            for length in range(1, len(WORD) + 1):
                page.get_by_label("Text").fill(WORD[:length])
                page.wait_for_timeout(300)
            page.get_by_role("group", name="Target symbols").locator(".symbol").nth(4).hover()
            page.wait_for_timeout(300)
            page.screenshot(path=ROOT / "docs" / "images" / f"playground-{scheme}.png")
        browser.close()
        server.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
