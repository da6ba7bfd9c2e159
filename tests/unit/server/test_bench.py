"""Tests of the parts of `attendant bench`: requests, layouts, advice, memory. tests/integration tests the command."""

import itertools
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers

from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, Tokenizer
from attendant.runtime.errors import UserError
from attendant.server.bench.command import (
    BenchResult,
    Layout,
    Visit,
    advice,
    group_resident_mib,
    layouts,
    requests_for,
)
from attendant_client.command import main
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.paths import ROOT

BUNDLE = str(ROOT / "models" / "g2p-en")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(Path(BUNDLE))


def parsed(payloads: list[bytes]) -> list[messages.GenerateRequest]:
    return [messages.GenerateRequest.FromString(payload) for payload in payloads]


def test_texts_of_a_file_end_at_a_tab_and_must_fit(bundle: Bundle, tmp_path: Path) -> None:
    data = tmp_path / "words.tsv"
    data.write_text("face\tF EY1 S\nonnx\n\n" + 41 * "a" + "\n")
    payloads, about = requests_for(bundle, data, 2)
    requests = parsed(payloads)
    assert sorted(request.text for request in requests) == ["face", "onnx"]
    assert {request.decoding.beam_size for request in requests} == {2}
    assert about == f"2 of the 4 lines of {data}; 2 others are empty or too long"


def test_a_bundle_of_tokens_only_gets_tokens(bundle: Bundle, tmp_path: Path) -> None:
    vocabulary = {symbol: number for number, symbol in enumerate([*SPECIAL_TOKENS, "F", "EY"])}
    library = LibraryTokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    (tmp_path / "sounds.tsv").write_text("F EY Q\tface\n")
    payloads, _ = requests_for(replace(bundle, source_tokenizer=Tokenizer(library)), tmp_path / "sounds.tsv", None)
    (request,) = parsed(payloads)
    assert list(request.tokens.tokens) == ["F", "EY", "<unk>"]


@pytest.mark.parametrize("content", [None, b"\xff", b""])
def test_an_unusable_file_is_named(bundle: Bundle, tmp_path: Path, content: bytes | None) -> None:
    data = tmp_path / "words.txt"
    if content is not None:
        data.write_bytes(content)
    with pytest.raises(UserError, match=f"--data {data}: "):
        requests_for(bundle, data, None)


def test_without_a_file_sources_have_the_lengths_that_the_bundle_recorded(bundle: Bundle) -> None:
    requests = parsed(requests_for(bundle, None, None)[0])
    assert bundle.manifest.reference is not None
    lengths = [len(request.tokens.tokens) for request in requests]
    recorded = bundle.manifest.reference.signals["source_tokens"]
    bounds = [0.0, *recorded.edges, float("inf")]
    for share, (above, up_to) in zip(recorded.shares, itertools.pairwise(bounds), strict=True):
        assert sum(above < length <= up_to for length in lengths) / len(lengths) == pytest.approx(share, abs=0.06)
    assert not any(request.decoding.HasField("beam_size") for request in requests), "the bundle's default"


def test_workers_double_up_to_the_processors() -> None:
    assert layouts(1) == [Layout(1, 1)]
    assert layouts(6) == [Layout(1, 6), Layout(2, 6), Layout(4, 6), Layout(6, 6)]
    assert layouts(8) == [Layout(1, 8), Layout(2, 8), Layout(4, 8), Layout(8, 8)]


def result(generator_share: float = 0.1) -> BenchResult:
    single, two = layouts(2)

    def visit(layout: Layout, clients: int, rate: float, p99_ms: float) -> Visit:
        speed = {"rate": rate, "answered_per_second": rate, "p50_ms": p99_ms / 2, "p99_ms": p99_ms}
        memory = {"resident_mib": 200.0, "generator_share": generator_share}
        return Visit(layout=layout, clients=clients, **speed, **memory)

    return BenchResult(
        model="mine <1>",
        processor="a processor",
        sent="words",
        closed=[visit(single, 1, 90, 20), visit(single, 64, 300, 200), visit(two, 1, 80, 25), visit(two, 64, 400, 150)],
        open=[visit(two, 0, rate, rate / 2) for rate in (100.0, 200.0, 300.0, 360.0)],
        best=two,
        capacity=400.0,
    )


def test_the_advice_has_options_latency_and_remarks() -> None:
    text = advice(Path("my own"), result(generator_share=0.95))
    for part in (
        "attendant serve 'my own' --workers 2 --threads 2",
        "ATTENDANT_WORKERS=2 ATTENDANT_THREADS=2, memory limit 300 MiB",
        "plan for 300 requests/s on a host like this: p50 75.0 ms, p99 150.0 ms",
        "a request alone is fastest with --workers 1 --threads 2: p50 10.0 ms",
        "load generator was busy",
    ):
        assert part in text
    assert "load generator" not in advice(Path("mine"), result())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "attendant bench: nowhere is no folder"),
        ([BUNDLE, "--beam-size", "99"], "attendant bench: --beam-size is 99, must be 1 to "),
        ([BUNDLE, "--seconds", "inf"], "attendant bench: --seconds is inf, must be a positive number of seconds"),
        ([BUNDLE, "--seconds", "nan"], "attendant bench: --seconds is nan, must be a positive number of seconds"),
        ([BUNDLE, "--seconds", "1"], "attendant bench: --seconds is 1, must be 3 or more on this host of 1 CPUs"),
        ([BUNDLE, "--output", f"{__file__}/figures"], f"attendant bench: {__file__}/figures: can't be written: Not a"),
    ],
)
def test_a_mistake_is_a_line(
    arguments: list[str], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    with pytest.raises(SystemExit) as caught:
        main(["bench", *arguments])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(line)


MEBIBYTES = 64
FAMILY = f"""
import os, time
held = bytearray(b"x") * ({MEBIBYTES} << 20)
for _ in range(2):
    if os.fork():
        time.sleep(60)
if WRITES:
    held[::4096] = b"y" * len(held[::4096])
print("ready", flush=True)
time.sleep(60)
"""
"""A process, its child and its grandchild. The grandchild writes to all pages if WRITES is true."""


@pytest.mark.parametrize(("writes", "times"), [(False, 1), (True, 2)])
def test_pages_that_forked_processes_share_count_once(writes: bool, times: int) -> None:
    program = FAMILY.replace("WRITES", str(writes))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, process_group=0) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            assert times * MEBIBYTES < group_resident_mib(process.pid) < (times + 0.9) * MEBIBYTES
        finally:
            os.killpg(process.pid, signal.SIGKILL)
