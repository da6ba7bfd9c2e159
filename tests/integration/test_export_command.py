"""Tests of `python -m export` on a real run: publishing, verification, inspection and refusals."""

import contextlib
import functools
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import attendant
from attendant.export import commands
from attendant.export.__main__ import main
from attendant.export.origins import exportable_bundle, exportable_run
from attendant.export.verification.certification import GridComparison
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME, SEARCH_OPTIONS, Manifest
from attendant.runtime.bundle_stepper import BundleStepper
from attendant.runtime.command import run_command
from attendant.runtime.errors import UserError
from attendant.training.__main__ import main as train
from attendant.training.run.loading import load_run
from attendant_client.version import VERSION
from tests.bundles import TINY_PLAN
from tests.faults.crafting import seal
from tests.paths import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains the toy recipe for a few steps."""
    folder = tmp_path_factory.mktemp("toy")
    short = ["--set", "training.max_steps=30", "--set", "training.num_threads=1"]
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        train(["reverse", "--output", "runs/toy", *short])
    return folder / "runs" / "toy"


@pytest.fixture(scope="module")
def bundle(run: Path) -> Path:
    path = run.parent.parent / "bundles" / "toy"
    # Runs in the folder of the training, because the paths of the recipe's data are relative to it.
    with contextlib.chdir(run.parent.parent), contextlib.redirect_stdout(io.StringIO()):
        main(["runs/toy", "--output", str(path)])
    return path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the command compare few sources with PyTorch; the shared bundle has been compared with all."""
    monkeypatch.setattr(commands, "export_run", functools.partial(commands.export_run, plan=TINY_PLAN))


def command(*arguments: object) -> int:
    return run_command("export", lambda: main([str(argument) for argument in arguments]))


def test_the_bundle_has_its_provenance(run: Path, bundle: Path) -> None:
    opened = open_bundle(bundle)
    manifest = opened.manifest
    assert manifest.name == "toy"
    assert manifest.limits.max_source_tokens == 16
    assert manifest.provenance.recipe["data"]["fetch"] == "reverse"
    assert manifest.provenance.checkpoint.startswith("sha256:")
    assert manifest.provenance.versions["exported_by"].startswith(f"attendant {VERSION}, commit ")
    assert {entry.metric for entry in manifest.evaluation} == {"exact_match", "perplexity", "word_perplexity"}
    assert (manifest.certificates[0].grid.batch_sizes[-1], manifest.certificates[0].grid.source_lengths[-1]) == (64, 80)
    assert {example.beam_size for example in opened.golden} == {1, 4}
    assert manifest.reference is not None and manifest.reference.num_examples >= 100
    assert manifest.reference.data == "data/reverse/validation.tsv"
    assert manifest.confidence is not None and manifest.confidence.data == "data/reverse/validation.tsv"
    assert opened.seen_bigrams is not None and str(manifest.confidence.right) == "exact match"
    assert str(run.parent) not in (bundle / MANIFEST_NAME).read_text()
    assert [path.name for path in bundle.parent.iterdir()] == ["toy"]


def test_the_function_publishes_the_same_graphs(
    run: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parent.parent)
    output = tmp_path / "toy"
    output.mkdir()
    (output / MANIFEST_NAME).write_text(json.dumps({"format_version": 0}))
    with pytest.raises(UserError, match="exists already: add --force"):
        attendant.export_run(run, output)
    # Tracing the run again would give the same graphs: tests/parity/test_export.py checks this.
    traced = exportable_bundle(open_bundle(bundle))
    monkeypatch.setattr("attendant.export.origins.ExportableModel.graphs", lambda self: traced.graphs())
    exported = attendant.export_run(Path("runs/toy"), output, force=True, plan=TINY_PLAN)
    assert capfd.readouterr() == ("", "")
    assert exported.path == output and exported.advice == ()
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]
    published = open_bundle(bundle).manifest
    # Everything that the manifest's digest depends on, except the time and the plan.
    assert exported.manifest.files == published.files
    changing = {"provenance": {"created"}, "digest": ..., "certificates": ...}
    assert exported.manifest.model_dump(exclude=changing) == published.model_dump(exclude=changing)
    assert f"{exported.path}: toy {exported.manifest.version}, " in str(exported)
    # A bundle from a bundle, measured on pairs in memory, can be loaded as it is.
    pairs = [(text, text[::-1]) for text in ("abc", "bcd", "cab", "dab")]
    again = attendant.export_run(
        exported, tmp_path / "again", precisions=["fp32", "int8"], data=pairs, beam_size=2, plan=TINY_PLAN
    )
    assert set(again.manifest.graphs) == {"fp32", "int8"} and again.manifest.decoding.beam_size == 2
    assert {entry.num_examples for entry in again.manifest.evaluation if entry.precision == "int8"} == {4}
    with attendant.load(again) as model:
        assert model.version == again.manifest.version
    # On another machine, the data may be missing.
    monkeypatch.chdir(tmp_path)
    elsewhere = attendant.export_run(run, tmp_path / "elsewhere", plan=TINY_PLAN)
    assert elsewhere.manifest.confidence is None
    (line,) = elsewhere.advice
    assert "data/reverse/validation.tsv" in line and "attendant reference" in line


def test_export_run_refuses_invalid_arguments(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must be of fp32, int8, fp16"):
        attendant.export_run(run, tmp_path / "bundle", precisions=())
    for name in (3, ""):
        with pytest.raises(UserError, match=f"--name {name!r}: a bundle's name has 1 to 64"):
            attendant.export_run(run, tmp_path / "bundle", name=name)  # type: ignore[arg-type]
    for option, value, must_be in (("beam_size", "x", "a whole number"), ("patience", [1], "a number")):
        flag = f"--{option.replace('_', '-')}"
        with pytest.raises(UserError, match=f"^{re.escape(f'{flag} {value}: must be {must_be}')}$"):
            attendant.export_run(run, tmp_path / "bundle", **{option: value})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="provider='gpu': must be cpu or cuda"):
        attendant.verify(tmp_path, provider="gpu")  # type: ignore[arg-type]
    for signature in ("release.pub", 3):
        with pytest.raises(UserError, match=f"signature={signature!r}: must be a list of paths"):
            attendant.verify(tmp_path, signature=signature)  # type: ignore[arg-type]
    for name, limit in (("load_seconds", "9"), ("load_mib", None), ("load_mib", 0)):
        with pytest.raises(UserError, match=f"{name}={limit!r}: must be a number above 0"):
            attendant.verify(tmp_path, **{name: limit})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="--checkpoint is for --run"):
        attendant.verify(tmp_path, checkpoint="last")


def test_every_precision_is_verified_on_the_sources_of_the_run(
    run: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent.parent)
    both = attendant.export_run(bundle, tmp_path / "both", precisions=["fp32", "int8"], measure=False, plan=TINY_PLAN)
    grids = {}

    def recorded(manifest: Manifest, stepper: BundleStepper, *rest: Any) -> GridComparison:
        grids[stepper.precision] = grid = GridComparison(manifest, stepper, *rest, TINY_PLAN)
        return grid

    monkeypatch.setattr("attendant.export.verification.certification.GridComparison", recorded)
    attendant.verify(both, run=run)
    sources = exportable_run(load_run(run)).encoder_sources()
    assert {precision: grid.real_sources for precision, grid in grids.items()} == {"fp32": sources, "int8": sources}


def test_it_is_verified_again_with_its_run_and_inspected(
    run: Path, bundle: Path, tiny_bundle_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("verify", bundle, "--run", run) == 0
    output = capsys.readouterr().out
    assert "golden examples hold" in output
    assert "decodings identical to PyTorch's" in output
    assert command("verify", tiny_bundle_path, "--run", run) == 2
    assert "name its run" in capsys.readouterr().err
    assert command("inspect", bundle) == 0
    output = capsys.readouterr().out
    for part in ("toy  version ", "exact_match", "alone = batched bit for bit", "fp32/decoder_step.onnx", "memory"):
        assert part in output


def test_golden_examples_that_fail_are_status_1(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "attendant.runtime.bundle_stepper.check_decoding", lambda *arguments: ["golden example 1: differs"]
    )
    assert command("verify", bundle) == 1
    assert "  - golden example 1: differs" in capsys.readouterr().err


def test_references_are_added_to_a_bundle_that_has_none(
    tiny_bundle_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    words = [f"{first}{second}{third}" for first in "abcdef" for second in "ghij" for third in "abcdex"]
    pairs.write_text("".join(f"{word}\tAA\n" for word in words))
    # Another program may write a bundle's graphs into other folders.
    nested = Path(shutil.copytree(tiny_bundle_path, tmp_path / "nested"))
    (nested / "graphs").mkdir()
    (nested / "fp32").rename(nested / "graphs" / "fp32")

    def move(content: dict[str, Any]) -> None:
        for name in ("encoder", "decoder_step"):
            graph = content["graphs"]["fp32"][name]
            content["files"][f"graphs/{graph['file']}"] = content["files"].pop(graph["file"])
            graph["file"] = f"graphs/{graph['file']}"

    seal(nested, move)
    assert command("reference", nested, "--data", pairs, "--output", tmp_path / "new") == 0
    assert "with references of 144 texts in fp32; no confidence: fewer than 200 texts\n" in capsys.readouterr().out
    old, new = open_bundle(nested).manifest, open_bundle(tmp_path / "new").manifest
    assert old.reference is None and new.reference is not None
    assert new.files == old.files
    assert new.reference.signals["source_tokens"].edges == (3.0,)
    assert new.reference.signals["unknown_ratio"].shares[0] == pytest.approx(120 / 144, abs=1e-4)
    pairs.write_text("abc\tAA\n" * 9)
    assert command("reference", tiny_bundle_path, "--data", pairs, "--output", tmp_path / "other") == 2
    assert "fewer than 100 sources" in capsys.readouterr().err


def test_a_graph_that_is_no_model_is_not_exported_again(
    tiny_bundle_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Path(shutil.copytree(tiny_bundle_path, tmp_path / "broken"))
    (broken / "fp32" / "encoder.onnx").write_bytes(b"garbage")
    seal(broken)
    assert command(broken, "--output", tmp_path / "new") == 2
    assert "fp32/encoder.onnx: no ONNX model of an export" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


@pytest.mark.filterwarnings("ignore")  # warnings of model_signing's import
def test_a_bundle_is_signed_once_and_verified(
    tiny_bundle_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("model_signing", reason="the extra `signing` is not installed")
    signed = Path(shutil.copytree(tiny_bundle_path, tmp_path / "signed"))
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = tmp_path / "release.pem", tmp_path / "release.pub"
    pem = serialization.Encoding.PEM
    private.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret"))
    )
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    (tmp_path / "secret").write_text("secret\n")
    options = "--key", private, "--passphrase-file", tmp_path / "secret"
    assert command("verify", signed, "--signature", public) == 2
    assert "model.sig is missing: the bundle is not signed" in capsys.readouterr().err
    assert command("sign", signed, *options) == 0
    assert command("sign", signed, *options) == 2
    assert "exists already: add --force" in capsys.readouterr().err
    assert command("verify", signed, "--signature", public) == 0
    assert f"signed, as {public} confirms" in capsys.readouterr().out
    assert command("sign", signed, "--key", tmp_path / "secret", "--force") == 2
    assert "--key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["{run}", "--output", "{bundle}"], "exists already: add --force"),
        (["{run}", "--output", "{bundle}/new"], "is inside the bundle"),
        (["verify", "{bundle}", "--checkpoint", "last"], "--checkpoint is for --run"),
        (["verify", "{bundle}", "--load-mib", "1.5"], "--load-mib: '1.5' is not a whole number from 1 to 1,000,000"),
        (["verify", "{bundle}", "--load-seconds", "x"], "--load-seconds: 'x' is not a number from 0.1 to 86,400"),
        (["{run}", "--output", "out", "--beam-size", "99"], "--beam-size 99: this model's beams have 1 to "),
        (["{run}", "--output", "out", "--precision", "fp32,int4"], "'int4' is none of fp32, int8"),
        (["{run}", "--output", "out", "--data", "nowhere.tsv"], "--data nowhere.tsv: nothing is measured on it"),
    ],
)
def test_mistakes_are_status_2_and_one_clear_line(
    arguments: list[str],
    reason: str,
    run: Path,
    bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(*(argument.format(run=run, bundle=bundle) for argument in arguments)) == 2
    assert reason in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_int8_of_a_bundle_is_measured_on_a_file(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, output = tmp_path / "test.tsv", tmp_path / "int8"
    data.write_text("a b c\tc b a\nb a\ta b\n", encoding="utf-8")
    search = ("--beam-size", 4, "--length-penalty", 0.6, "--length-penalty-offset", 0, "--patience", 2)
    assert command(bundle, "--output", output, "--precision", "fp32,int8", "--data", data, *search) == 0
    manifest = open_bundle(output).manifest
    assert [getattr(manifest.decoding, name) for name in SEARCH_OPTIONS] == [4, 0.6, 0.0, 2.0]
    assert {example.length_penalty_offset for example in open_bundle(output).golden} == {0.0}
    on_file = [entry for entry in manifest.evaluation if entry.num_examples == 2]
    assert [entry.precision for entry in on_file if entry.metric == "perplexity"] == ["fp32", "int8"]
    measured = [entry for entry in on_file if entry.metric == "exact_match"]
    assert [(entry.metric, entry.precision) for entry in measured] == [
        ("exact_match", precision) for precision in ("fp32", "int8", "fp32")
    ]
    assert ["greedy" in entry.protocol for entry in measured] == [False, False, True]
    assert measured[1].difference == measured[1].value - measured[0].value
    is_good = measured[0].value > 0 and measured[1].difference >= -0.2
    assert manifest.default_precision == {"cpu": "int8" if is_good else "fp32", "cuda": "fp32"}
    printed = capsys.readouterr().out
    assert "int8: exact_match" in printed
    # The fp32 reference is still that of the run's validation texts.
    assert manifest.reference_of("fp32") == open_bundle(bundle).manifest.reference
    assert manifest.reference_of("int8") is None
    if is_good:
        assert "no reference distributions in int8: attendant reference" in printed
    pairs = tmp_path / "pairs.tsv"
    texts = [" ".join(letters) for length in range(1, 5) for letters in itertools.product("abc", repeat=length)]
    pairs.write_text("".join(f"{text}\ta\n" for text in texts))
    assert command("reference", output, "--data", pairs, "--output", tmp_path / "new") == 0
    assert "with references of 120 texts in fp32 and int8" in capsys.readouterr().out
    new = open_bundle(tmp_path / "new").manifest
    assert new.files == manifest.files
    assert new.reference is not None and new.reference.precision == new.default_precision["cpu"]
    references = [new.reference_of(precision) for precision in ("fp32", "int8")]
    assert [reference and (reference.precision, reference.data) for reference in references] == [
        ("fp32", str(pairs)),
        ("int8", str(pairs)),
    ]
    assert command("verify", output) == 0
    assert "int8 on cpu: " in capsys.readouterr().out
    assert command("inspect", output) == 0
    assert "model.output.weight: int8" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_unmeasured_int8_is_compared_with_fp32_and_no_default_alongside_it(bundle: Path, tmp_path: Path) -> None:
    """Exports int8 with and without fp32. In both cases the certificate compares int8 with the fp32 graphs."""
    both, alone = tmp_path / "both", tmp_path / "alone"
    both.mkdir()
    (both / MANIFEST_NAME).write_text(json.dumps({"format_version": 0}))
    for output, precision in ((both, "fp32,int8"), (alone, "int8")):
        options = "--precision", precision, "--skip-evaluation", "--force", "--name", "other"
        assert command(bundle, "--output", output, *options) == 0
    manifest = open_bundle(both).manifest
    assert manifest.name == "other" and set(manifest.graphs) == {"fp32", "int8"}
    assert manifest.default_precision["cpu"] == "fp32"
    whole, int8 = open_bundle(both), open_bundle(alone)
    assert not (alone / "fp32").exists() and int8.manifest.graphs == {"int8": whole.manifest.graphs["int8"]}
    assert int8.manifest.default_precision == {"cpu": "int8"}
    assert int8.manifest.certificates == whole.manifest.certificates
    assert int8.golden == tuple(example for example in whole.golden if example.precision == "int8")
    assert command("verify", alone) == 0
    assert command("inspect", alone) == 0


DEAF = """
import runpy, sys, time, torch

def never_interrupted(*_, **__):
    print("tracing", file=sys.__stderr__, flush=True)
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            pass

torch.onnx.export = never_interrupted
runpy.run_module("attendant.export", run_name="__main__", alter_sys=True)
"""


def test_an_exporter_that_swallows_interruptions_is_interrupted(run: Path, tmp_path: Path) -> None:
    """Simulates PyTorch's exporter, which catches KeyboardInterrupt in some places."""
    process = subprocess.Popen(
        [sys.executable, "-c", DEAF, str(run), "--output", str(tmp_path / "bundle")],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while "tracing" not in (line := process.stderr.readline()):
        assert line
    assert list(tmp_path.glob(".bundle.partial-*"))
    process.send_signal(signal.SIGTERM)
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "export: interrupted" in errors and "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
