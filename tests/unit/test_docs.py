"""Tests of the pages: programs run, lists are complete, and released parts of the API do not change unnoticed."""

import ast
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator
from prometheus_client import CollectorRegistry

from attendant.recipes.papers import __main__ as papers
from attendant.server.grpc.service import METHODS, Seq2SeqServicer
from attendant.server.metrics import Metrics
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.model import attention as scores
from attendant.training.model.stepper import TorchStepper
from attendant.training.recipe import load_recipe
from attendant_client.command.parser import FURTHER, load, parse
from tests.bundles import TINY_SIZES
from tests.paths import ROOT

DOCS = ROOT / "docs"
SHELL = {"|", "&&", "<", ">", "2>&1"}


def test_the_score_in_extending_md_trains_and_steps(monkeypatch) -> None:
    code, *_ = re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    names = dict(vars(scores))
    exec(re.sub(r"(?m)^   ", "", code), names)
    monkeypatch.setitem(scores.SCORES, "cosine", names["CosineScore"])
    config = ModelConfig(**TINY_SIZES)
    config = config.model_copy(update={"attention": config.attention.model_copy(update={"score": "cosine"})})
    model = Seq2Seq(config, 9, 9).eval()
    source, previous = torch.tensor([[4, 5, 6, 3, 0, 0, 0, 0]]), torch.tensor([[2, 5]])
    forced = model(source, torch.tensor([4]), previous).log_softmax(-1)
    stepper = TorchStepper(model)
    state = stepper.encode([[4, 5, 6, 3]])
    for position in range(2):
        output, state = stepper.step(state, previous[:, position].numpy(), num_candidates=1)
        torch.testing.assert_close(
            torch.from_numpy(output.candidate_log_probs)[0, 0], forced[0, position].max(), atol=1e-5, rtol=0
        )


def test_the_calls_of_the_api_are_listed_and_built() -> None:
    document = (DOCS / "api.md").read_text()
    (table,) = re.findall(r"\| call \| what it does \|\n((?:\|.*\n)+)", document)
    listed = {name for row in table.splitlines()[1:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert listed == set(METHODS)
    assert set(METHODS) <= vars(Seq2SeqServicer).keys()


def test_every_metric_is_documented() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    documented = (DOCS / "metrics.md").read_text()
    ours = [family for family in registry.collect() if family.name.startswith("attendant_")]
    names = {family.name + ("_total" if family.type == "counter" else "") for family in ours}
    assert len(names) > 25
    assert not {name for name in names if name not in documented}


@pytest.mark.parametrize("name", ["recipes.md", "serving.md", "manifest.schema.json"])
def test_the_page_is_current(name: str) -> None:
    """`python docs/write_pages.py` writes the pages."""
    assert (DOCS / name).read_text() == runpy.run_path(str(DOCS / "write_pages.py"))["PAGES"][name]()


def test_the_schema_of_manifests_holds() -> None:
    validator = Draft202012Validator(json.loads((DOCS / "manifest.schema.json").read_text()))
    manifests = list((DOCS.parent / "models").glob("*/manifest.json"))
    assert len(manifests) >= 4
    for path in manifests:
        assert not list(validator.iter_errors(json.loads(path.read_text()))), path
    changed = json.loads(manifests[0].read_text()) | {"graphs": {}, "another": 1}
    assert len(list(validator.iter_errors(changed))) == 1


PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("[!.]*/*.md"), *DOCS.glob("*/*.md"), *ROOT.glob("recipes/*/*.md")})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_command_line_on_a_page_is_valid(page: Path) -> None:
    """Includes commands that take too long to run, and their changes of recipes."""
    text = page.read_text().replace("\\\n", " ")
    for program, line in re.findall(r"(?m)^ *(?:\$ )?(?:\.venv/bin/)?(attendant|python -m recipes\.papers) (.+)", text):
        words = list(takewhile(lambda word: word not in SHELL, shlex.split(line, comments=True)))
        if program != "attendant":
            papers.parser().parse_args(words)
        elif words[0] not in FURTHER:
            parse(words)
        else:
            parsed = load(words[0]).parser.parse_args(words[1:])
            if words[0] == "train" and (ROOT / "recipes" / parsed.inputs[0]).exists():
                load_recipe(Path(parsed.inputs[0]), parsed.overrides)


@pytest.mark.slow
def test_every_link_between_pages_leads_somewhere(tmp_path: Path) -> None:
    """Runs the same check as `make docs`, which every push runs outside the tests."""
    line = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "-d", str(tmp_path / "read"), "."]
    done = subprocess.run([*line, str(tmp_path / "site")], cwd=DOCS.parent, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "site/docs/index.html").is_file()


ONLY_IN_A_CHECKOUT = re.compile(r"python -m (training|export|server)\b|pip install '\.\[")


def messages_of(path: Path) -> list[str]:
    """Returns the texts in a module that are not docstrings."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    described = [node for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    docstrings = {ast.get_docstring(node, clean=False) for node in described}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [text for text in texts if text not in docstrings]


def test_messages_name_what_a_wheel_has() -> None:
    rooms = ("runtime", "training", "export", "server", "client/attendant_client")
    modules = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    texts = {path: text for path in modules for text in messages_of(path) if ONLY_IN_A_CHECKOUT.search(text)}
    assert not texts, "say `attendant train`, `export`, `serve`, and pip install 'attendant-seq2seq[EXTRA]'"


PROTOS = ROOT / "protos"
FILE = "attendant/v1/seq2seq.proto"

check = runpy.run_path(str(PROTOS / "check.py"))["check"]


def test_the_api_is_in_order_and_keeps_what_was_released(capfd: pytest.CaptureFixture[str]) -> None:
    assert check() == 0, capfd.readouterr()


@pytest.mark.parametrize(
    ("there", "instead", "complaint"),
    [
        ("optional uint32 beam_size = 1;", "optional uint32 beam_size = 30;", 'Previously present field "1"'),
        ("optional uint32 beam_size = 1;", "optional int64 beam_size = 1;", "changed type"),
        ("optional uint32 beam_size = 1;", "optional uint32 beams = 1;", 'changed name from "beam_size" to "beams"'),
        ("rpc Score(ScoreRequest) returns (ScoreResponse);", "", 'Previously present RPC "Score"'),
        ("optional uint32 beam_size = 1;", "optional uint32 beamSize = 1;", "should be lower_snake_case"),
    ],
)
def test_incompatible_changes_of_the_api_are_refused(
    there: str, instead: str, complaint: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(PROTOS / "attendant", tmp_path / "attendant")
    text = (tmp_path / FILE).read_text()
    assert text.count(there) == 1
    (tmp_path / FILE).write_text(text.replace(there, instead))
    assert check(tmp_path) != 0
    assert complaint in capfd.readouterr().out
