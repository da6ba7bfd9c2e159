"""Tests of `attendant` as one command for all installed distributions, and for a bundle without a server."""

import asyncio
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attendant_client.command import main
from attendant_client.command.asking import LocalModel
from attendant_client.command.parser import FURTHER, OWN, SHELLS
from attendant_client.version import VERSION
from tests.paths import ROOT
from tests.unit.client.fake_server import Served

BUNDLE = str(ROOT / "models" / "g2p-en")
PROGRAM = "import sys; {}from attendant_client.command import main; sys.exit(main())"


@pytest.fixture(autouse=True)
def _own_end() -> Iterator[None]:
    """Restores the handlers of SIGTERM and SIGINT, which commands in this process replace."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(*arguments: str, without: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Runs the command in a new process, in which the packages `without` are not installed."""
    missing = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
    # An earlier command in this process may have set the variable.
    environment.pop("GRPC_VERBOSITY", None)
    command = [sys.executable, "-c", PROGRAM.format(missing), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_distribution_that_is_not_installed_is_named_in_a_line() -> None:
    name = "serve"
    done = run(name, "something", without=["attendant"])
    assert (done.returncode, done.stdout) == (2, "")
    extras = FURTHER[name].extras
    wheel = f"./attendant_seq2seq-{VERSION}-py3-none-any.whl[{extras}]"
    assert done.stderr == (
        f"attendant {name}: the distribution attendant-seq2seq is not installed: pip install '{wheel}' (made by `make "
        f"dist`), or in a checkout '.[{extras}]'\n"
    )


@pytest.mark.parametrize(
    ("name", "missing", "extras"),
    [
        ("export", "torch", "cpu,export"),
        ("train", "torch", "cpu,training"),
        ("serve", "onnxruntime", "cpu"),
    ],
)
def test_a_missing_package_of_an_extra_is_named_in_a_line(name: str, missing: str, extras: str) -> None:
    output = ["--output", "new"] if name == "export" else []
    done = run(name, BUNDLE, *output, without=[missing])
    error = f"attendant {name}: {missing} is not installed: pip install 'attendant-seq2seq[{extras}]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", error)


OF_TRAINING = ["torch", "onnx", "onnxscript", "safetensors", "tomli_w", "rapidfuzz", "sacrebleu", "rouge_score"]


def test_a_servers_environment_verifies_inspects_and_evaluates_bundles(tmp_path: Path) -> None:
    bundle, data = str(ROOT / "models/normalize-numbers-en"), tmp_path / "data.tsv"
    data.write_text("21\ttwenty-one\none hundred\t100\n")
    done = run("verify", bundle, without=OF_TRAINING)
    assert (done.returncode, "golden examples hold" in done.stdout) == (0, True), done.stderr
    done = run("inspect", bundle, without=[*OF_TRAINING, "onnxruntime"])
    assert (done.returncode, done.stdout.startswith("normalize-numbers-en  version ")) == (0, True), done.stderr
    evaluate = ["evaluate", bundle, "--data", str(data), "--json", "--bootstrap", "0", "--metrics"]
    done = run(*evaluate, "exact_match,wer,perplexity", without=OF_TRAINING)
    assert done.returncode == 0, done.stderr
    values = {
        measurement["metric"]: measurement["value"]
        for measurement in json.loads(done.stdout)["results"][0]["measurements"]
    }
    assert values["exact_match"] == 100 and values["wer"] == 0
    done = run(*evaluate, "exact_match,bleu", without=OF_TRAINING)
    error = (
        "attendant evaluate: metric bleu: sacrebleu is not installed: pip install sacrebleu, or choose --metrics of "
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and done.stderr.startswith(error)


def test_a_failure_is_one_line_without_messages_of_grpc(server: Served) -> None:
    done = run("health", "--target", server.target, "--tls")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert "the server does not speak TLS" in done.stderr


def test_the_clients_own_commands_need_nothing_else() -> None:
    done = run("--help", without=["attendant"])
    assert done.returncode == 0
    assert {*OWN, *FURTHER} <= set(done.stdout.split())
    done = run("generate", "face", "--bundle", "b", without=["attendant"])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--bundle: the distribution attendant-seq2seq is not installed: pip install" in done.stderr


@pytest.mark.parametrize("name", FURTHER)
def test_each_command_has_the_name_that_was_typed(name: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for option in ("--help", "--version"):
        with pytest.raises(SystemExit) as ended:
            main([name, option])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith((f"usage: attendant {name} ", "attendant "))
    with pytest.raises(SystemExit) as ended:
        main([name, "--no-such-option"])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith(f"attendant {name}: ") and line.endswith(f"; see attendant {name} --help")
    if name == "serve":
        monkeypatch.delenv("ATTENDANT_BUNDLES", raising=False)
        with pytest.raises(SystemExit) as ended:
            main([name])
        assert (ended.value.code, capsys.readouterr().err.startswith("attendant serve: no bundle: ")) == (2, True)


def test_a_bundle_answers_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    done = run("generate", "phoneme", "", "face", "--bundle", BUNDLE, without=["torch", "attendant.training"])
    assert (done.returncode, done.stdout) == (2, "F OW1 N IY0 M\n\nF EY1 S\n")
    assert done.stderr == "attendant: text 2: text is 0 tokens long, must be 1 to 40 tokens long\n"
    assert main(["generate", "face", "--bundle", BUNDLE, "--json", "--attention"]) == 0
    weights = json.loads(capsys.readouterr().out)["hypotheses"][0]["attention"]
    assert (len(weights), len(weights[0])) == (4, 5)
    assert main(["score", "face", "F EY1 S", "--bundle", BUNDLE]) == 0
    pattern = r"(-0\.\d{4})\tperplexity (1\.\d{3}) per token, \2 per word"
    shown = re.fullmatch(pattern, capsys.readouterr().out.splitlines()[0])
    assert shown is not None and float(shown[2]) == pytest.approx(math.exp(-float(shown[1]) / 4), abs=6e-4)
    assert main(["score", "face", "F ZZ", "--bundle", BUNDLE]) == 0
    assert "('ZZ')" in capsys.readouterr().err
    assert main(["generate", "face", "--bundle", BUNDLE, "--links"]) == 0
    assert capsys.readouterr().out == "F EY1 S\t0-0 1-1 2-2\n"
    assert main(["generate", "face", "--bundle", BUNDLE, "--trace"]) == 0
    assert capsys.readouterr().out.startswith("F EY1 S\n\n4 steps, then ")
    assert main(["generate", "face", "--bundle", BUNDLE, "--trace", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["trace"]["searches"]) == 1


@pytest.mark.parametrize("waits_for", ["load", "generate"])
def test_ctrl_c_does_not_wait_for_a_bundle(waits_for: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release = threading.Event(), threading.Event()

    def block(*_: object, **__: object) -> Any:
        begun.set()
        return release.wait(60)

    model = SimpleNamespace(generate=block)
    monkeypatch.setattr("attendant.server.library.load", block if waits_for == "load" else lambda *_, **__: model)

    async def interrupted() -> None:
        async with LocalModel(Path(BUNDLE)) as local:
            await local.generate("face", model="", version="")

    async def main() -> None:
        asking = asyncio.create_task(interrupted())
        await asyncio.to_thread(begun.wait, 60)
        asking.cancel()
        await asyncio.wait([asking])

    began = time.monotonic()
    asyncio.run(main())
    release.set()
    assert time.monotonic() - began < 30


def test_a_bundle_answers_in_the_precision_that_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    scores = []
    for precision in (["--precision", "fp32"], ["--precision", "int8"], []):
        assert main(["score", "face", "F EY1 S", "--bundle", BUNDLE, "--json", *precision]) == 0
        scores.append(json.loads(capsys.readouterr().out)["log_prob"])
    assert scores[0] != scores[1] == scores[2]
    assert main(["generate", "face", "--bundle", "models/normalize-numbers-en", "--precision", "int8"]) == 2
    error = "attendant: --bundle: precision int8 is not in the bundle normalize-numbers-en; it has fp32\n"
    assert capsys.readouterr().err == error


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--precision", "fp32"], "--precision: chooses among a bundle's graphs, so it needs --bundle"),
        (["--bundle", BUNDLE, "--model", "m"], "choose among a server's models; with --bundle"),
        (["--bundle", BUNDLE, "--tls"], "attendant generate: --tls: is an option for servers; with --bundle"),
    ],
)
def test_options_of_bundles_and_of_servers_exclude_each_other(
    options: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["generate", "face", *options])
    assert (ended.value.code, error in capsys.readouterr().err) == (2, True)


def test_a_bundle_overrides_the_target_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTENDANT_TARGET", "from.the.environment:1")
    assert main(["generate", "face", "--bundle", BUNDLE]) == 0
    assert main(["generate", "face", "--bundle", BUNDLE, "--beam-size", "99"]) == 2
    assert main(["generate", "face", "--bundle", "nowhere"]) == 2
    beam, nowhere, *_ = capsys.readouterr().err.splitlines()
    assert beam.startswith("attendant: decoding.beam_size is 99")
    assert nowhere.startswith("attendant: --bundle: nowhere is no folder")


def completion(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = completion(shell, capsys)
    assert all(name in script for name in [*OWN, *FURTHER, "no-repeat-ngram-size", "max-restarts", "by-length"])


COMPLETE = """source {script}
complete_word() {{
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
  _shtab_attendant attendant "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
  echo "${{COMPREPLY[@]}}"
}}
complete_word attendant ser
complete_word attendant generate --beam
complete_word attendant evaluate --split te
complete_word attendant serve --max-r
"""


def test_bash_completes_commands_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "attendant.bash"
    script.write_text(completion("bash", capsys))
    done = subprocess.run(["bash", "-c", COMPLETE.format(script=script)], capture_output=True, text=True)
    command, beam, split, limits = (set(line.split()) for line in done.stdout.splitlines())
    assert (command, beam) == ({"serve"}, {"--beam-size"})
    assert split >= {"test"} and limits == {"--max-restarts", "--max-rows"}
