"""Tests of bundles: their files, their formats, and the stepper that serves them."""

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attendant.runtime.bundle.bundle import GOLDEN_NAME, Bundle, BundleRefused, golden_text, open_bundle, parse_golden
from attendant.runtime.bundle.manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest, Precision, Provider
from attendant.runtime.bundle_stepper import check_decoding, open_stepper
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.device import DeviceStepper
from attendant.runtime.onnx.stepper import OnnxStepper
from tests.faults.crafting import Craft, field, seal
from tests.paths import ROOT

DENIED = f"Permission denied: give user {os.geteuid()} access to it and to its folders"
NEWER = {"length_penalty_offset": 0.0, "patience": 2.0, "max_length_ratio": 1.5}


@pytest.fixture
def copy(tiny_bundle_path: Path, tmp_path: Path) -> Path:
    """Copies the tiny bundle to a folder with another name."""
    return Path(shutil.copytree(tiny_bundle_path, tmp_path / "renamed"))


def refusal_of(bundle: Path) -> tuple[str, ...]:
    with pytest.raises(BundleRefused) as refusal:
        open_bundle(bundle)
    assert all(line in str(refusal.value) for line in refusal.value.differences)
    return refusal.value.differences


def test_a_folder_may_be_renamed(copy: Path, tiny_bundle_path: Path) -> None:
    bundle = open_bundle(copy)
    assert bundle.manifest.name == "tiny"
    assert bundle.manifest.version == open_bundle(tiny_bundle_path).manifest.version
    assert len(bundle.manifest.version) == 12
    assert check_decoding(bundle, OnnxStepper(bundle), "fp32", "cpu") == []


def test_a_bundle_older_than_an_option_keeps_its_digest(copy: Path) -> None:
    manifest = Manifest.model_validate_json(Path("tests/eight_bits/lstm/manifest.json").read_text())
    assert manifest.computed_digest() == manifest.digest
    seal(copy, lambda content: content["decoding"].update(NEWER))
    decoding = open_bundle(copy).manifest.decoding
    assert {name: getattr(decoding, name) for name in NEWER} == NEWER
    assert json.loads((copy / MANIFEST_NAME).read_text())["decoding"].items() >= NEWER.items()


def test_answers_are_compared_with_references_of_their_precision() -> None:
    manifest = Manifest.model_validate_json(Path("models/normalize-numbers-en/manifest.json").read_text())
    plain = manifest.reference
    assert plain is not None and "references" not in json.loads(manifest.to_text())
    assert [manifest.reference_of(precision) for precision in ("fp32", "int8", "fp16")] == [plain, None, plain]
    other = plain.model_copy(update={"precision": "int8"})
    both = manifest.model_copy(update={"references": {"int8": other}})
    assert [both.reference_of(precision) for precision in ("fp32", "int8")] == [plain, other]
    assert Manifest.model_validate_json(both.to_text()) == both


def test_golden_examples_older_than_an_option_are_written_as_they_were() -> None:
    text = Path("tests/eight_bits/lstm/golden.jsonl").read_text()
    assert golden_text(parse_golden(text)) == text


def test_symbols_of_golden_examples_may_be_ends_of_lines() -> None:
    first, *_ = open_bundle(Path("models/g2p-en")).golden
    examples = (first.model_copy(update={"source_tokens": ("\u2028", "\x85"), "target_tokens": ("\u2029",)}), first)
    assert parse_golden(golden_text(examples)) == examples and parse_golden("") == ()


def test_symbols_of_golden_examples_may_not_be_halves_of_characters() -> None:
    first, *_ = open_bundle(Path("models/g2p-en")).golden
    text = golden_text((first,)).replace(f'"{first.target_tokens[0]}"', r'"\ud800"')
    with pytest.raises(ValueError, match=r"golden\.jsonl: line 1: Invalid JSON"):
        parse_golden(text)


def test_a_bundle_has_examples_to_show() -> None:
    bundle = open_bundle(Path("models/g2p-en"))
    golden = {("".join(example.source_tokens), " ".join(example.target_tokens)) for example in bundle.golden}
    assert len(bundle.examples()) == 3 and set(bundle.examples()) <= golden
    lengths = [len(source) for source, _ in bundle.examples()]
    assert lengths == sorted(lengths) and lengths[0] == min(len(source) for source, _ in golden)
    for examples in (bundle.golden[:1], bundle.golden[:2], ()):
        assert len(replace(bundle, golden=examples).examples()) == len({each.source_tokens for each in examples})
    assert bundle.description.endswith("in the sounds of CMUdict, with stress.")


def test_every_difference_is_reported(copy: Path) -> None:
    graph = copy / "fp32" / "encoder.onnx"
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 1
    graph.write_bytes(content)
    (copy / "source_tokenizer.json").unlink()
    (copy / "target_tokenizer.json").write_text("{}")
    (copy / "notes.txt").write_text("mine")
    (copy / "int8").mkdir()
    (copy / "int8" / "encoder.onnx").write_bytes(b"")
    differences = refusal_of(copy)
    assert len(differences) == 5
    for number, expected in enumerate(
        (
            "int8/encoder.onnx: not listed",
            "notes.txt: not listed",
            "fp32/encoder.onnx: sha256 is",
            "source_tokenizer.json: missing",
            "target_tokenizer.json: 2 bytes, the manifest has",
        )
    ):
        assert differences[number].startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", f"{MANIFEST_NAME} can't be read"),
        ("[]", f"{MANIFEST_NAME} is no JSON object"),
        ("{}", "format_version is None, this version of Attendant reads 1"),
        ('{"format_version": 2}', "format_version is 2, this version of Attendant reads 1"),
        ('{"format_version": 1}', f"{MANIFEST_NAME}: name: Field required"),
    ],
)
def test_an_invalid_manifest_is_refused(copy: Path, text: str, expected: str) -> None:
    (copy / MANIFEST_NAME).write_text(text)
    assert any(line.startswith(expected) for line in refusal_of(copy))


def test_a_changed_manifest_is_refused_by_its_digest(copy: Path) -> None:
    text = (copy / MANIFEST_NAME).read_text()
    (copy / MANIFEST_NAME).write_text(text.replace('"max_beam_size": 8', '"max_beam_size": 9'))
    (line,) = refusal_of(copy)
    assert "digest is" in line


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("a\0b", "embedded null"),
        ("long" * 100, "File name too long"),
    ],
    ids=["null", "long"],
)
def test_a_name_that_can_not_be_a_folder_is_refused(tmp_path: Path, place: str, reason: str) -> None:
    (line,) = refusal_of(tmp_path / place)
    # Python's versions word it differently.
    assert line.startswith(f"{MANIFEST_NAME} can't be read: ") and reason in line


@pytest.mark.parametrize(
    ("place", "reason"), [("nowhere", "is no folder"), ("file", "is no folder"), (".", f"it has no {MANIFEST_NAME}")]
)
def test_a_folder_without_a_bundle_is_named_in_one_line(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as caught:
        open_bundle(tmp_path / place)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{tmp_path / place} ") and reason in line


def test_a_folder_that_can_not_be_read_is_named(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path / "lost+found"))

    monkeypatch.setattr("attendant.runtime.bundle.reading.files_in", denied)
    assert refusal_of(copy) == (f"{copy}/lost+found can't be read: {DENIED}",)


@pytest.mark.parametrize("name", [MANIFEST_NAME, "golden.jsonl", "fp32/encoder.onnx"])
def test_a_file_that_this_user_may_not_read_needs_no_other_copy(
    copy: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_open = os.open

    def denied(path: Any, *arguments: Any, **options: Any) -> int:
        if path == copy / name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return system_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(BundleRefused) as refusal:
        open_bundle(copy)
    assert refusal.value.differences == (f"{name} can't be read: {DENIED}",)
    assert "again" not in refusal.value.summary


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        (field("source", "vocabulary_size", value=15), "source_tokenizer.json: 14 symbols, the manifest has 15"),
        (field("target", "vocabulary_size", value=9), "target_tokenizer.json: 16 symbols, the manifest has 9"),
        (field("special_ids", "eos", value=2), "special_ids.eos: 2, the tokenizers have 3"),
        (field("special_ids", "start", value=16), "special_ids.start: 16 is not in the target vocabulary"),
        (field("certificates", value=[]), "certificates: none for fp32"),
        (field("graphs", "fp32", "encoder", "sha256", value="0"), "fp32/encoder.onnx: sha256 is 0 in graphs"),
        (field("default_precision", "cpu", value="int8"), "default_precision.cpu: int8 is not among the graphs"),
        (field("graphs", "fp32", "state", value=[]), "fp32/encoder.onnx: output 'cell' is unknown"),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "",
)
def test_a_manifest_that_contradicts_itself_is_refused(copy: Path, mistake: Craft, expected: str) -> None:
    mistake(copy)
    assert any(line.startswith(expected) for line in refusal_of(copy))


def test_graphs_with_other_inputs_than_the_manifests_are_refused(copy: Path) -> None:
    def lie(content: dict[str, Any]) -> None:
        graphs = content["graphs"]["fp32"]
        graphs["decoder_step"]["inputs"][0]["dtype"] = "int32"
        graphs["encoder"]["outputs"][0]["shape"] = ["B", 1, 99]

    seal(copy, lie)
    with pytest.raises(BundleRefused) as refusal:
        OnnxStepper(open_bundle(copy))
    assert refusal.value.differences == (
        "fp32/encoder.onnx: output 'hidden': the manifest has float32 ['B', 1, 99], the graph has float32 ['B', 1, 16]",
        "fp32/decoder_step.onnx: input 'previous_ids': the manifest has int32 ['R'], the graph has int64 ['R']",
    )


def test_changed_golden_examples_are_refused(copy: Path) -> None:
    lines = [json.loads(line) for line in (copy / GOLDEN_NAME).read_text().splitlines()]
    lines[0]["target_tokens"] = ["AA", "AE"]
    lines[1]["score"] += 0.01
    (copy / GOLDEN_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    seal(copy)
    bundle = open_bundle(copy)
    differences = check_decoding(bundle, OnnxStepper(bundle), "fp32", "cpu")
    assert len(differences) == 2
    assert any("golden example 1 " in line and "must be 'AA AE'" in line for line in differences)
    assert any("golden example 2 " in line and "score is" in line for line in differences)


KEPT = ROOT / "tests" / "bundle_formats"


def test_a_bundle_of_each_format_is_kept() -> None:
    assert {path.name for path in KEPT.iterdir()} == {str(number) for number in range(1, FORMAT_VERSION + 1)}


@pytest.mark.parametrize("path", sorted(KEPT.iterdir()), ids=lambda path: f"format {path.name}")
def test_a_bundle_of_each_format_is_opened_and_decodes_as_before(path: Path) -> None:
    bundle = open_bundle(path)
    assert str(bundle.manifest.format_version) == path.name
    assert not check_decoding(bundle, OnnxStepper(bundle, num_threads=1), "fp32", "cpu")


@pytest.fixture
def bundle(tiny_bundle_path: Path) -> Bundle:
    return open_bundle(tiny_bundle_path)


def with_precision(bundle: Bundle, precision: str) -> Bundle:
    """Returns the bundle with its fp32 graphs listed under another precision too."""
    graphs = {**bundle.manifest.graphs, precision: bundle.manifest.graphs["fp32"]}
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"graphs": graphs}))


@pytest.mark.parametrize(
    ("precision", "provider", "is_there", "reason"),
    [
        ("fp16", "cpu", True, r"precision fp16 is not served on cpu: .* slower .*; choose precision fp32$"),
        ("int8", "cuda", True, r"precision int8 is not served on cuda: .*; choose precision fp32$"),
        ("int8", "cpu", False, "precision int8 is not in the bundle tiny; it has fp32"),
        ("fp16", "cpu", False, "precision fp16 is not in the bundle tiny; it has fp32"),
    ],
)
def test_a_precision_that_can_not_be_served_is_refused(
    bundle: Bundle, precision: Precision, provider: Provider, is_there: bool, reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        open_stepper(with_precision(bundle, precision) if is_there else bundle, precision, provider)


def test_cuda_keeps_the_state_on_the_device_or_is_not_available(bundle: Bundle) -> None:
    try:
        stepper = open_stepper(bundle, provider="cuda")
    except UserError as refusal:
        assert str(refusal).startswith("provider cuda is not available here: ")
    else:
        assert isinstance(stepper, DeviceStepper)
