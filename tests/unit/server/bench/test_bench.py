"""What a bench sends, tries, says and draws; the command itself is in tests/integration/test_bench.py."""

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.errors import UserError
from attendant.server.bench.chart import chart, side_by_side
from attendant.server.bench.measuring import Found, Layout, Visit, layouts
from attendant.server.bench.report import advice, picture
from attendant.server.bench.sources import sources_of
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.paths import ROOT

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(ROOT / "models" / "g2p-en")


def parsed(payloads: list[bytes]) -> list[messages.GenerateRequest]:
    return [messages.GenerateRequest.FromString(one) for one in payloads]


def test_texts_come_from_a_file_up_to_a_tab_and_those_that_do_not_fit_stay_out(bundle: Bundle, tmp_path: Path) -> None:
    data = tmp_path / "words.tsv"
    data.write_text("face\tF EY S\nonnx\n\n" + 41 * "a" + "\n")
    sources = sources_of(bundle, data, 2)
    requests = parsed(sources.payloads)
    assert sorted(one.text for one in requests) == ["face", "onnx"]
    assert {one.decoding.beam_size for one in requests} == {2}
    assert sources.about == f"2 of the 4 lines of {data}; 2 others are empty or too long"


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "can't be read: No such file"), (b"\xff", "can't be read: not UTF-8"), (b"", "none of its lines")],
)
def test_a_file_that_can_not_be_sent_is_a_line(
    bundle: Bundle, tmp_path: Path, content: bytes | None, said: str
) -> None:
    data = tmp_path / "words.txt"
    if content is not None:
        data.write_bytes(content)
    with pytest.raises(UserError, match=f"--data {data}: {said}"):
        sources_of(bundle, data, None)


def test_without_a_file_sources_are_as_long_as_the_bundle_has_recorded(bundle: Bundle) -> None:
    requests = parsed(sources_of(bundle, None, None).payloads)
    recorded = bundle.manifest.reference
    assert recorded is not None
    lengths = [len(one.tokens.tokens) for one in requests]
    signal = recorded.signals["source_tokens"]
    bounds = [0.0, *signal.edges, float("inf")]
    for share, (above, up_to) in zip(signal.shares, itertools.pairwise(bounds), strict=True):
        assert sum(above < length <= up_to for length in lengths) / len(lengths) == pytest.approx(share, abs=0.06)
    assert not any(one.decoding.HasField("beam_size") for one in requests), "the bundle's own"


def test_workers_double_up_to_the_processors() -> None:
    assert layouts(1) == [Layout(1, 1)]
    assert layouts(6) == [Layout(1, 6), Layout(2, 6), Layout(4, 6), Layout(6, 6)]


def visit(layout: Layout, clients: int, rate: float, p99_ms: float, share: float = 0.1) -> Visit:
    return Visit(
        layout=layout,
        clients=clients,
        rate=rate,
        answered_per_second=rate,
        p50_ms=p99_ms / 2,
        p99_ms=p99_ms,
        resident_mib=200.0,
        generator_share=share,
    )


def found(share: float = 0.1) -> Found:
    one, two = layouts(2)
    closed = [visit(one, 1, 90.0, 20.0), visit(one, 64, 300.0, 200.0)]
    closed += [visit(two, 1, 80.0, 25.0), visit(two, 64, 400.0, 150.0, share)]
    return Found(closed, [visit(two, 0, rate, rate / 2) for rate in (100.0, 200.0, 300.0, 360.0)], two)


def test_the_advice_names_the_options_what_to_expect_and_what_to_mind() -> None:
    said = advice(Path("mine"), found(share=0.95))
    for part in (
        "attendant serve mine --workers 2 --threads 2",
        "ATTENDANT_WORKERS=2 ATTENDANT_THREADS=2, memory limit 300 MiB",
        "plan for 300 requests/s on a host like this: p50 75.0 ms, p99 150.0 ms",
        "a request alone is fastest with --workers 1 --threads 2: p50 10.0 ms",
        "load generator was busy",
    ):
        assert part in said
    assert "load generator" not in advice(Path("mine"), found())


def test_the_picture_has_a_point_for_each_visit_within_it() -> None:
    drawn = ET.fromstring(picture(found(), "mine <1>"))
    dots = drawn.findall(f".//{SVG}circle")
    assert len(dots) == 4 + 2 * 4
    assert all(0 < float(dot.attrib["cx"]) < 460 and 0 < float(dot.attrib["cy"]) < 340 for dot in dots)
    assert "mine <1>: closed loop" in [text.text for text in drawn.iter(f"{SVG}text")]


@pytest.mark.parametrize("most", [0.0, 0.003, 7.0, 1000.0, 123456.0])
def test_axes_end_at_a_round_number_that_holds_all(most: float) -> None:
    drawn = ET.fromstring(side_by_side([chart("", "", "", {"line": [(1.0, most)]})]))
    assert float(drawn.findall(f".//{SVG}circle")[0].attrib["cy"]) >= 40 - 0.05
