"""Hostile bundles.

The author of a bundle writes its digests too, so right digests do not make it harmless.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from attendant.export.__main__ import command as command_of_export
from attendant.runtime.bundle.manifest import MANIFEST_NAME
from attendant.runtime.errors import Refusal
from attendant.runtime.process import LOAD_MIB, LOAD_SECONDS
from attendant.server.engine.loading import load_engine, open_within_limits
from tests.configuration import parse_config
from tests.faults.conftest import Figure
from tests.faults.crafting import (
    ENCODER,
    GOLDEN,
    HUGE,
    SOURCE,
    STEP,
    TARGET,
    Craft,
    endless,
    fewer_rows,
    field,
    fifo,
    foreign_operator,
    golden,
    graph,
    greedy_for_memory,
    link,
    loop,
    manifest_text,
    many_files,
    nested_scans,
    one_symbol_more,
    seal,
    sparse,
    tokenizer,
    unix_socket,
    values_outside,
)
from tests.faults.figures import at_most
from tests.paths import ROOT
from tests.server_process import MEBIBYTE, command

PADDING = {
    "strategy": {"Fixed": 1000},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 99_999,
    "pad_type_id": 0,
    "pad_token": "[PAD]",
}
TRUNCATION = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 5}
TENFOLD = {"type": "Replace", "pattern": {"String": "x"}, "content": "x" * 10}
UNIGRAM = {
    "type": "Unigram",
    "unk_id": None,
    "byte_fallback": False,
    "vocab": [[symbol, 0.0] for symbol in ("<pad>", "<unk>", "<s>", "</s>", *"abcdefghij")],
}


def change(**fields: Any) -> Any:
    return lambda content: content.update(fields)


def of_first(**fields: Any) -> Any:
    return lambda examples: examples[0].update(fields)


def distant_id(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["a"] = 70_000


def every_precision(name: str) -> Any:
    return lambda examples: [example.update(precision=name) for example in examples]


def not_utf8(folder: Path) -> None:
    (folder / SOURCE).write_bytes(b"\xff\xfe")
    seal(folder)


def strange_name(folder: Path) -> None:
    (folder / "a\nserving on 1.2.3.4\x1b[2J").touch()


def listed_elsewhere(folder: Path) -> None:
    def move(content: dict[str, Any]) -> None:
        content["files"]["../outside"] = content["files"].pop(ENCODER)
        content["graphs"]["fp32"]["encoder"]["file"] = "../outside"

    shutil.copy(folder / ENCODER, folder.parent / "outside")
    seal(folder, move)


CASES: dict[str, tuple[Craft, str]] = {
    "a link to a graph": (link(ENCODER), f"{ENCODER}: a symbolic link"),
    "a link to a folder": (link("fp32"), "fp32: a symbolic link"),
    "a link to the manifest": (link(MANIFEST_NAME), f"{MANIFEST_NAME} can't be read: a symbolic link"),
    "a link to nowhere": (lambda folder: (folder / "x").symlink_to("nowhere"), "x: a symbolic link"),
    "a link to itself": (lambda folder: (folder / "x").symlink_to(folder), "x: a symbolic link"),
    "a path that leads outside": (listed_elsewhere, "../outside: missing"),
    "a FIFO for the golden examples": (fifo(GOLDEN), f"{GOLDEN}: a FIFO"),
    "a FIFO for the manifest": (fifo(MANIFEST_NAME), f"{MANIFEST_NAME} can't be read: a FIFO"),
    "a socket": (unix_socket, "socket: a socket"),
    "a thousand files": (many_files, "holds more than 64 files and folders"),
    "a name that writes to the terminal": (strange_name, r"a\nserving on 1.2.3.4\u001b[2J: not listed"),
    "golden examples of 10 GB": (sparse(GOLDEN, 10 * HUGE), f"{GOLDEN}: 10000000000 bytes, may have 67108864"),
    "a tokenizer of 600 MB": (sparse(SOURCE, 600_000_000), f"{SOURCE}: 600000000 bytes, may have 67108864"),
    "a manifest of 600 MB": (sparse(MANIFEST_NAME, 600_000_000), f"{MANIFEST_NAME} can't be read: 600000000 bytes"),
    "a graph of 10 GB": (sparse(ENCODER, 10 * HUGE), f"{ENCODER}: 10000000000 bytes, may have 2147483648"),
    "a bundle of 100 GB": (sparse(ENCODER, 100 * HUGE), "bytes in all, a bundle may have"),
    "a deep manifest": (
        manifest_text(lambda text: '{"format_version": 1, "x": ' + "[" * 200_000),
        f"{MANIFEST_NAME} can't be read: nested deeper than 64",
    ),
    "a manifest somewhat too deep": (
        manifest_text(lambda text: text.replace('"recipe": {', '"recipe": {"x": ' + "[" * 99 + "]" * 99, 1)),
        f"{MANIFEST_NAME} can't be read: nested deeper than 64",
    ),
    "NaN in the manifest": (
        manifest_text(lambda text: text.replace('"score_tolerance": 0.0001', '"score_tolerance": NaN')),
        f"{MANIFEST_NAME} can't be read: NaN is no number",
    ),
    "infinity in the manifest": (
        manifest_text(lambda text: text.replace('"score_tolerance": 0.0001', '"score_tolerance": 1e999')),
        f"{MANIFEST_NAME} can't be read: 1e999 is too large for a number",
    ),
    "a key twice": (
        manifest_text(lambda text: text.replace('"max_beam_size": 8', '"max_beam_size": 8, "max_beam_size": 9')),
        f"{MANIFEST_NAME} can't be read: the key 'max_beam_size' occurs twice",
    ),
    "half a character": (
        manifest_text(lambda text: text.replace('"protocol": "', '"protocol": "\\ud800')),
        f"{MANIFEST_NAME}: ",
    ),
    "not UTF-8": (not_utf8, f"{SOURCE}: 'utf-8' codec can't decode"),
    "sources without end": (field("limits", "max_source_tokens", value=HUGE), "limits.max_source_tokens: "),
    "targets without end": (field("limits", "max_target_tokens", value=HUGE), "limits.max_target_tokens: "),
    "beams without end": (field("limits", "max_beam_size", value=HUGE), "limits.max_beam_size: "),
    "a vocabulary without end": (field("target", "vocabulary_size", value=HUGE), "target.vocabulary_size: "),
    "queries without end": (field("graphs", "fp32", "min_queries", value=HUGE), "graphs.fp32.min_queries: "),
    "any score will do": (
        lambda folder: seal(folder, lambda content: content["certificates"][0].update(score_tolerance=1e9)),
        "certificates.0.score_tolerance: ",
    ),
    "a default beam beyond the limit": (field("decoding", "beam_size", value=9), "decoding.beam_size: 9, must be"),
    "a default beam of none": (field("decoding", "beam_size", value=0), "decoding.beam_size: "),
    "an id beyond the embedding": (tokenizer(SOURCE, distant_id), f"{SOURCE}: 14 symbols, and the id 70000"),
    "an id beyond the output": (
        tokenizer(TARGET, lambda content: content["model"]["vocab"].update(AA=70_000)),
        f"{TARGET}: 16 symbols, and the id 70000",
    ),
    "padding": (tokenizer(SOURCE, change(padding=PADDING)), f"{SOURCE}: padding and truncation must be unset"),
    "a tokenizer that panics when read": (
        tokenizer(SOURCE, change(pre_tokenizer={"type": "FixedLength", "length": 0})),
        f"{SOURCE}: ",
    ),
    "truncation that panics": (tokenizer(SOURCE, change(truncation=TRUNCATION)), f"{SOURCE}: "),
    "a tokenizer that fails on what it does not know": (
        tokenizer(SOURCE, change(model=UNIGRAM)),
        f"{SOURCE}: 'A b' can't be tokenized: ",
    ),
    "a tokenizer that makes much of little": (
        tokenizer(SOURCE, change(normalizer={"type": "Prepend", "prepend": "a" * 10_000})),
        f"{SOURCE}: normalizer: prepends more than 4 characters",
    ),
    "a tokenizer that makes a million characters of one": (
        tokenizer(SOURCE, change(normalizer={"type": "Sequence", "normalizers": [TENFOLD] * 6})),
        f"{SOURCE}: normalizer: replaces 1 characters by 10",
    ),
    "no golden examples": (golden(list.clear), f"{GOLDEN}: no example in fp32"),
    "golden examples of another precision": (golden(every_precision("int8")), f"{GOLDEN}: no example in fp32"),
    "a golden score that is no number": (golden(of_first(score=float("nan"))), f"{GOLDEN}: line 1: NaN is no number"),
    "a golden beam without end": (golden(of_first(beam_size=HUGE)), f"{GOLDEN}: line 1: beam_size is {HUGE}"),
    "a golden source without end": (
        golden(of_first(source_tokens=["a"] * 99)),
        f"{GOLDEN}: line 1: source_tokens is 99, must be 1 to 64",
    ),
    "golden examples without end": (golden(lambda lines: lines.extend(lines * 100)), "more than 1000 examples"),
    "an unknown golden token": (golden(of_first(source_tokens=["\x1b[2J"])), r"line 1: '\x1b[2J' at position 0"),
    "a graph that is none": (
        lambda folder: ((folder / ENCODER).write_bytes(b"no graph"), seal(folder)),  # type: ignore[func-returns-value]
        f"{ENCODER}: no ONNX model",
    ),
    "weights in another file": (
        graph(ENCODER, values_outside),
        f"{ENCODER}: the values of a tensor lie in ",
    ),
    "an operator of a stranger": (
        graph(ENCODER, foreign_operator),
        "'Backdoor' of 'evil.example' is not among",
    ),
    "a loop": (graph(ENCODER, loop), f"{ENCODER}: the operator 'Loop' of 'ai.onnx' is not among"),
    "scans within each other": (graph(ENCODER, nested_scans), "a graph within a graph within a graph"),
    "a source embedding without the last symbol": (
        graph(ENCODER, fewer_rows("model.source_embedding.weight")),
        f"{ENCODER} and {STEP}: decoding the last symbols fails: ",
    ),
    "a target embedding without the last symbol": (
        graph(STEP, fewer_rows("model.target_embedding.weight")),
        f"{ENCODER} and {STEP}: decoding the last symbols fails: ",
    ),
    "an output that no tokenizer knows": (
        graph(STEP, one_symbol_more),
        "the candidates of a step are not the 16 target symbols",
    ),
}
SEEN_BY_LOADING = {
    "a graph that is none",
    "weights in another file",
    "an operator of a stranger",
    "a loop",
    "scans within each other",
    "a source embedding without the last symbol",
    "a target embedding without the last symbol",
    "an output that no tokenizer knows",
}
UNBOUNDED: dict[str, tuple[Craft, str]] = {
    "a graph that does not end": (graph(ENCODER, endless), "not done after 2 s"),
    "a graph that wants memory": (graph(ENCODER, greedy_for_memory), "MiB of memory, may take 192"),
}
"""Bundles that are refused only while they compute, so the process that opens them must end."""

SECONDS, MIB = 2, 192
"""Limits for these bundles. A valid bundle takes a tenth of a second and some MiB."""


@pytest.fixture
def crafted(tiny_bundle_path: Path, tmp_path: Path) -> Path:
    """Returns a copy of a valid bundle, which tests may change."""
    return Path(shutil.copytree(tiny_bundle_path, tmp_path / "crafted"))


def load(bundle: Path, *options: str) -> None:
    config = parse_config([str(bundle), "--threads", "1", *options], {})
    load_engine(open_within_limits(bundle, config), config)


def export_command(name: str, bundle: Path) -> None:
    command_of_export(name)([str(bundle)])


OPENERS: dict[str, Callable[[Path], None]] = {
    "server": load,
    "export verify": partial(export_command, "verify"),
    "export inspect": partial(export_command, "inspect"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_crafted_bundle_is_refused_with_its_reason(name: str, crafted: Path) -> None:
    craft, reason = CASES[name]
    craft(crafted)
    for by, opens in OPENERS.items():
        if by == "export inspect" and name in SEEN_BY_LOADING:
            continue
        with pytest.raises(Refusal) as refusal:
            opens(crafted)
        assert reason in str(refusal.value), by
        assert "\x1b" not in str(refusal.value) and str(refusal.value).count("\n") <= 3


def test_a_sealed_sound_bundle_is_served(crafted: Path) -> None:
    seal(crafted)
    load(crafted)


def test_state_that_would_not_fit_is_refused_before_its_allocation(crafted: Path) -> None:
    field("limits", "max_source_tokens", value=60_000)(crafted)
    with pytest.raises(Refusal, match=r"limits\.max_source_tokens: 4 sources of 60000 tokens take \d+ MiB of state"):
        load(crafted, "--max-source-positions", "999999", "--load-mib", "20")


def refusal_by(arguments: list[str], environment: dict[str, str]) -> tuple[list[str], float, float]:
    """Runs a command that must refuse a bundle; returns its error lines, seconds and peak memory in MiB."""
    began, most = time.monotonic(), 0.0
    with subprocess.Popen(
        arguments, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        seen = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                most = max(most, sum(member.memory_info().rss for member in (seen, *seen.children())) / MEBIBYTE)
            except psutil.NoSuchProcess:
                break
            if time.monotonic() - began > 100:
                process.kill()
            time.sleep(0.005)
        output, errors = process.communicate()
    assert process.returncode in (1, 2) and not output, (process.returncode, output, errors)
    assert "Traceback" not in errors
    return [line for line in errors.splitlines() if not line.startswith("time=")], time.monotonic() - began, most


def commands(bundle: Path, seconds: float, mib: int) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Returns all commands that open a bundle, with their environments."""
    limits = "--load-seconds", f"{seconds:g}", "--load-mib", f"{mib}"
    ports = "--port", "0", "--metrics-port", "0", "--threads", "1"
    _, environment = command()
    export = [sys.executable, "-m", "export"]
    return {
        "server": command(str(bundle), *ports, *limits),
        "server with workers": command(str(bundle), *ports, *limits, "--workers", "2"),
        "export verify": ([*export, "verify", str(bundle), *limits], environment),
        "export inspect": ([*export, "inspect", str(bundle)], environment),
    }


@pytest.mark.parametrize(
    ("name", "by", "seconds"),
    [
        ("a FIFO for the golden examples", "server", LOAD_SECONDS),
        ("a graph that does not end", "server with workers", SECONDS),
        ("a graph that wants memory", "server", LOAD_SECONDS),
        # It imports torch.
        pytest.param("a graph that does not end", "export verify", SECONDS, marks=pytest.mark.reliability),
        pytest.param("a graph that wants memory", "export verify", LOAD_SECONDS, marks=pytest.mark.reliability),
    ],
)
def test_a_process_that_opens_a_crafted_bundle_ends_with_a_message(
    name: str, by: str, seconds: float, crafted: Path
) -> None:
    craft, reason = (CASES | UNBOUNDED)[name]
    craft(crafted)
    lines, _, _ = refusal_by(*commands(crafted, seconds, MIB)[by])
    assert any(reason in line for line in lines) and len(lines) <= 6


@pytest.mark.reliability
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("by", OPENERS)
def test_all_crafted_bundles_are_refused_with_little_time_and_memory(
    by: str, figure: Figure, tiny_bundle_path: Path, tmp_path: Path
) -> None:
    worst = {"seconds": 0.0, "mib": 0.0}
    cases = {name: case for name, case in CASES.items() if by != "export inspect" or name not in SEEN_BY_LOADING}
    for number, (name, (craft, reason)) in enumerate(cases.items()):
        crafted = Path(shutil.copytree(tiny_bundle_path, tmp_path / f"{number}" / "crafted"))
        craft(crafted)
        lines, seconds, mib = refusal_by(*commands(crafted, LOAD_SECONDS, LOAD_MIB)[by])
        assert any(reason in line for line in lines), (name, lines)
        worst = {"seconds": max(worst["seconds"], seconds), "mib": max(worst["mib"], mib)}
    what = f"{by}, refusing one of {len(cases)} crafted bundles"
    figure(f"{what}: from its start to its end", worst["seconds"], at_most(30), "s")
    figure(f"{what}: its memory, libraries included", worst["mib"], at_most(768), "MiB")
