"""Bundles in JavaScript: golden examples of every shipped bundle in node and in chromium, and the static page."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect, sync_playwright

import attendant
from tests.browser.conftest import CHROMIUM
from tests.browser.test_accessibility import axe, violations  # noqa: F401  (a fixture)
from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BUNDLES = sorted(path.parent for path in (ROOT / "models").glob("*/manifest.json"))
GOLDEN_IN_A_PAGE = """async () => {
  const ort = await import("./ort.wasm.min.mjs");
  const { Bundle } = await import("./bundle.mjs");
  const { goldenDifferences } = await import("./golden.mjs");
  const read = async (path) => new Uint8Array(await (await fetch(`bundle/${path}`)).arrayBuffer());
  const { precision } = await (await fetch("page.json")).json();
  ort.env.wasm.numThreads = 1;
  const bundle = await Bundle.open(ort, read, precision);
  return await goldenDifferences(bundle, new TextDecoder().decode(await read("golden.jsonl")));
}"""


@pytest.fixture(scope="module")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy of the example with its packages installed."""
    if not (shutil.which("npm") and shutil.which("node")):
        pytest.skip("no npm and node here")
    folder = tmp_path_factory.mktemp("javascript") / "example"
    shutil.copytree(ROOT / "examples" / "javascript", folder, ignore=shutil.ignore_patterns("node_modules"))
    done = subprocess.run(["npm", "ci", "--ignore-scripts"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def node(folder: Path, *arguments: object) -> str:
    done = subprocess.run(["node", *map(str, arguments)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_golden_examples_hold_in_node(javascript: Path) -> None:
    lines = node(javascript, "check.mjs", *BUNDLES).splitlines()
    assert len(lines) >= len(BUNDLES)
    for line in lines:
        counts = re.fullmatch(r"\S+ (?:fp32|int8): (\d+) of (\d+) as expected", line)
        assert counts is not None, line
        assert counts[1] == counts[2] != "0", line


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("g2p-en", ["phoneme", "  Knowledgeable\n", "don’t", "“Café”", "zq"]),
        ("g2p-ipa", ["de Straße", "de „Straße“,", "es (¡ciudad!)", "fr aujourd’hui", "it 'famiglia'."]),
        ("normalize-numbers-en", ["1,204", "May 5, 2024", "minus five", "3/4"]),
        (
            "summarize-debian",
            ["a\u0085library\x1f", "a\u00adb\u200bc\u200d \U000e0041", "don’t – “x”\u202e", "नमस्\u200dते"],
        ),
        ("translate-en-fr", ["Open the file  and close it.", "The server ends."]),
    ],
)
@pytest.mark.parametrize("beam_size", [1, 4])
def test_node_answers_as_the_library(javascript: Path, name: str, texts: list[str], beam_size: int) -> None:
    bundle = ROOT / "models" / name
    printed = node(javascript, "generate.mjs", bundle, beam_size, *texts).splitlines()
    model = attendant.load(bundle)
    for text, line in zip(texts, printed, strict=True):
        answer = model.generate(text, beam_size=beam_size, num_hypotheses=beam_size)
        theirs = json.loads(line)
        assert [hypothesis["text"] for hypothesis in theirs] == [hypothesis.text for hypothesis in answer.hypotheses]
        scores = [hypothesis.score for hypothesis in answer.hypotheses]
        assert [hypothesis["score"] for hypothesis in theirs] == pytest.approx(scores, rel=0.01, abs=0.01)


EACH = """
import { readFile } from "node:fs/promises";
import ort from "onnxruntime-node";
import { Bundle } from "./bundle.mjs";
const [folder, defaults, cases] = process.argv.slice(1);
const bundle = await Bundle.open(ort, (path) => readFile(`${folder}/${path}`));
Object.assign(bundle.manifest.decoding, JSON.parse(defaults));
for (const [source, options] of JSON.parse(cases)) {
  const done = bundle.generate(source, options).then(({ hypotheses }) => hypotheses.map(({ tokens }) => tokens));
  console.log(JSON.stringify(await done.catch((error) => error.message)));
}
"""


def tokens_or_errors(
    folder: Path, cases: list[tuple[Any, dict[str, Any]]], bundle: Path = ROOT / "models" / "g2p-en", **defaults: Any
) -> list[Any]:
    """Answers each source with its options by a bundle in node; `defaults` replace those of the manifest."""
    arguments = bundle, json.dumps(defaults), json.dumps(cases)
    return list(map(json.loads, node(folder, "--input-type=module", "--eval", EACH, *arguments).splitlines()))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("word", {"beamSize": 0}, "beamSize is 0, must be 1 to 32"),
        ("word", {"beamSize": 1.5}, "beamSize is 1.5, must be 1 to 32"),
        ("word", {"beamSize": "x"}, "beamSize is x, must be 1 to 32"),
        ("word", {"beamSize": 2, "numHypotheses": 3}, "numHypotheses is 3, must be 1 to 2"),
        ("word", {"lengthPenalty": -1}, "lengthPenalty is -1, must be 0 to 10"),
        ("word", {"lengthPenaltyOffset": "5"}, "lengthPenaltyOffset is 5, must be 0 to 10"),
        ("word", {"patience": -1}, "patience is -1, must be 0 to 10"),
        (
            "word",
            {"beam_size": 4},
            "there is no option beam_size; choose from beamSize, numHypotheses, ",
        ),
        ("...", {}, "the source is empty once it is normalized"),
        (None, {}, "the source must be a text or a list of tokens"),
        (["w", "zz", "</s>"], {}, "the source has tokens that are not in the vocabulary: zz </s>"),
    ],
)
def test_invalid_options_are_refused(javascript: Path, source: Any, options: dict[str, Any], message: str) -> None:
    (refusal,) = tokens_or_errors(javascript, [(source, options)])
    assert refusal.startswith(message)


def taking_tokens(bundle: Path, folder: Path) -> Path:
    """Returns a copy of a bundle in a folder whose sources are tokens."""
    shutil.copytree(bundle, folder)
    for name, changes in (
        ("manifest", {"source": {"tokens_only": True}}),
        ("source_tokenizer", {"pre_tokenizer": {"type": "CharDelimiterSplit", "delimiter": " "}}),
    ):
        path = folder / f"{name}.json"
        content = json.loads(path.read_text())
        for key, value in changes.items():
            content[key] = (content[key] or {}) | value
        path.write_text(json.dumps(content))
    return folder


def test_a_bundle_that_takes_tokens_only_gets_tokens(javascript: Path, tmp_path: Path) -> None:
    bundle = taking_tokens(ROOT / "models" / "g2p-en", tmp_path / "bundle")
    (answer, *_), refusal = tokens_or_errors(javascript, [(list("face"), {}), ("face", {})], bundle)
    assert answer == ["F", "EY1", "S"]
    assert refusal.startswith("the source is a text, must be a list of tokens")


def test_the_search_uses_the_manifests_patience_and_length(javascript: Path) -> None:
    model = attendant.load(ROOT / "models" / "g2p-en")
    texts = ["lieutenant", "knowledgeable", "zhqu", "aeiouaeiou", "wwwwwwwwww"]

    def expected(text: str, **options: Any) -> list[list[str]]:
        return [list(each.tokens) for each in model.generate(text, beam_size=8, **options).hypotheses]

    cases = [(text, {"beamSize": 8, "numHypotheses": n}) for text in texts for n in (1, 3)]
    impatient = [expected(text, num_hypotheses=options["numHypotheses"], patience=0.1) for text, options in cases]
    assert tokens_or_errors(javascript, cases, patience=0.1) == impatient
    patient = [expected(text, num_hypotheses=options["numHypotheses"]) for text, options in cases]
    assert (
        tokens_or_errors(javascript, [(text, options | {"patience": 0}) for text, options in cases], patience=0.1)
        == patient
    )
    assert impatient != patient
    # 1.1 times 10 tokens, and 10 more.
    assert len((longest := expected("wwwwwwwwww", max_length=21))[0]) == 21
    case = "wwwwwwwwww", {"beamSize": 8, "numHypotheses": 1}
    assert tokens_or_errors(javascript, [case], max_length=None, max_length_ratio=1.1) == [longest]


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def opened() -> Iterator[Page]:
    """Yields a browser's page."""
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(60_000)
        yield page
        browser.close()


@pytest.fixture
def address(request: pytest.FixtureRequest, javascript: Path, tmp_path: Path) -> Iterator[str]:
    """Serves the page of the bundle that the test names, as a static host does."""
    folder = tmp_path / "page"
    bundle, precision = request.param
    libraries = javascript / "node_modules"
    line = ["export", bundle, "--web", folder, "--precision", precision, "--web-libraries", libraries]
    subprocess.run([sys.executable, "-m", "attendant.export", *map(str, line[1:])], check=True, capture_output=True)
    shutil.copy(javascript / "golden.mjs", folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def precisions(bundle: Path) -> list[str]:
    return list(json.loads((bundle / "manifest.json").read_text())["graphs"])


EVERY = [pytest.param((bundle, p), id=f"{bundle.name}-{p}") for bundle in BUNDLES for p in precisions(bundle)]


@pytest.mark.parametrize("address", EVERY, indirect=True)
def test_golden_examples_hold_in_chromium(opened: Page, address: str) -> None:
    opened.goto(address)
    result = opened.evaluate(GOLDEN_IN_A_PAGE)
    assert result["differences"] == []
    assert result["numCompared"] > 20


def with_short_answers(route: Route) -> None:
    """Answers with a manifest whose answers have at most three tokens."""
    manifest = route.fetch().json()
    manifest["decoding"]["max_length"] = 3
    route.fulfill(json=manifest)


@pytest.mark.parametrize("address", [pytest.param((ROOT / "models" / "g2p-en", "int8"), id="g2p-en")], indirect=True)
def test_a_page_answers_while_one_types(opened: Page, address: str, axe: str) -> None:  # noqa: F811
    complaints: list[str] = []
    requests: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(address)
    expect(opened.locator("#state")).to_contain_text("int8, in this page", timeout=60_000)
    opened.get_by_label("Text").press_sequentially("phoneme", delay=10)
    expect(opened.locator("#text")).to_have_text("F OW1 N IY0 M")
    expect(opened.locator(".map .symbol").first).to_be_visible()
    assert violations(opened, axe) == []
    opened.locator("#best button").nth(1).click()
    expect(opened.locator("#text")).not_to_have_text("F OW1 N IY0 M")
    assert opened.url == f"{address}#text=phoneme"
    opened.reload()
    expect(opened.locator("#text")).to_have_text("F OW1 N IY0 M", timeout=60_000)
    opened.get_by_role("link", name="Skip to the answer").press("Enter")
    expect(opened.locator("#answer")).to_be_focused()
    assert opened.url == f"{address}#text=phoneme"
    opened.goto(f"{address}#text=face")  # another link, in the same tab
    expect(opened.locator("#text")).to_have_text("F EY1 S")
    opened.locator("#examples button").first.click()
    expect(opened.locator("#text")).not_to_have_text("F OW1 N IY0 M")
    opened.get_by_label("Text").fill("")
    expect(opened.locator("#text")).to_have_text("")
    opened.get_by_label("Beam").fill("0")
    opened.get_by_label("Text").fill("word")
    expect(opened.get_by_role("alert")).to_contain_text("beamSize is 0, must be 1 to 32")
    opened.get_by_label("Beam").fill("4")
    opened.get_by_label("Text").fill("x" * 500)
    expect(opened.get_by_role("alert")).to_contain_text("the source has 500 tokens, may have")
    opened.route("**/bundle/manifest.json", with_short_answers)
    opened.goto(f"{address}?short#text=phoneme")
    expect(opened.locator("#text")).to_have_text("F OW1 N …", timeout=60_000)
    assert complaints == []
    assert {url for url in requests if not url.startswith(address)} == set()
