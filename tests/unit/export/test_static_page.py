"""Tests of `attendant export BUNDLE --web FOLDER` with fake libraries; tests/system/test_javascript.py runs a page."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from attendant.export.__main__ import main
from attendant.export.static_page import LIBRARIES
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.errors import UserError
from tests.paths import ROOT

G2P = ROOT / "models" / "g2p-en"


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    folder = tmp_path / "node_modules"
    for package, files in LIBRARIES.items():
        for name in files:
            (folder / package / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / package / name).write_text(f"// {name}\n")
    return folder


def export(*arguments: object) -> None:
    main([str(argument) for argument in arguments])


@pytest.mark.parametrize(("options", "precision"), [((), "int8"), (("--precision", "fp32"), "fp32")])
def test_a_page_has_all_files_that_it_names(
    tmp_path: Path, libraries: Path, options: tuple[str, ...], precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "a page"
    export(G2P, "--web", page, "--web-libraries", libraries, *options)
    assert f"http.server --directory '{page}'" in capsys.readouterr().out
    written = json.loads((page / "page.json").read_text())
    assert written["precision"] == precision
    assert written["examples"] == [list(example) for example in open_bundle(G2P).examples()]
    assert {path.name for path in (page / "bundle").iterdir()} == {
        *("manifest.json", "source_tokenizer.json", "target_tokenizer.json", "golden.jsonl"),
        precision,
    }
    texts = {path: path.read_text() for path in page.glob("*") if path.suffix in (".js", ".mjs", ".html")}
    named = {name for text in texts.values() for name in re.findall(r'(?:from|href=|src=|Worker\()\s*"([^"#]+)"', text)}
    assert "./tokenizers.min.mjs" in named
    assert {name for name in named if not (page / name).is_file()} == set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("runs/none", "--web", "new"), r"--web takes a bundle, and runs/none has no manifest\.json"),
        ((G2P, "--web", "new", "--precision", "int8,fp32"), "a page runs one precision"),
        ((G2P, "--web", "new", "--precision", "fp16"), "--precision fp16 is for CUDA"),
        ((G2P, "--web", "new", "--beam-size", "2"), "--beam-size changes the bundle"),
        ((G2P, "--web", "new", "--web-libraries", "nothing"), r"nothing/.*is missing"),
        ((G2P, "--web", "occupied"), r"occupied exists already: add --force"),
        ((G2P, "--web", "occupied", "--force"), r"occupied exists and has no page\.json"),
        ((G2P, "--output", "new", "--web-libraries", "nothing"), "--web-libraries is for --web"),
    ],
)
def test_invalid_arguments_of_a_page_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("occupied").mkdir()
    Path("occupied/mine.txt").write_text("mine")
    with pytest.raises(UserError, match=message):
        export(*arguments)
    assert not Path("new").exists()
    assert Path("occupied/mine.txt").read_text() == "mine"


def test_without_npm_the_remedy_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=r"npm, which is not installed: .*--web-libraries"):
        export(G2P, "--web", tmp_path / "page")
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize("home", ["", "nowhere", "read-only"])
def test_npm_needs_no_home_that_the_user_may_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    (tmp_path / "read-only").mkdir()
    npm = tmp_path / "npm"
    npm.write_text(
        f"#!{sys.executable}\nimport os, sys\nsys.exit(os.environ['HOME'] + ' ' + os.environ['npm_config_cache'])\n"
    )
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / home) if home else "~")  # `~` is that of a user without an entry
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) == npm)
    folder = r"\S+/attendant-web-\w+"
    expected = f"{tmp_path}/read-only" if home == "read-only" else folder
    with pytest.raises(UserError, match=f"npm could not install .*: {expected} {folder}/cache; --web-libraries names"):
        export(G2P, "--web", tmp_path / "page")
