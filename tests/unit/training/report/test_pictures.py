"""Tests of drawings: well-formed SVG, in the report's colors only, without active content, and reproducible."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from attendant.runtime.decoding.batch import BatchRequest, RunningBatch
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.decoding.trace import TracedSearch
from attendant.training.evaluation.bootstrap import Interval, LengthBin
from attendant.training.evaluation.confidence import reliability
from attendant.training.report import pictures as charts
from attendant.training.report.curves import NO_CURVE, Curve
from attendant.training.report.gradients import Reach
from attendant.training.report.pictures import MIN_WEIGHT, NAMES, attention_map, beam_tree, on_page, variables
from tests.fakes import SPECIAL_IDS, FakeStepper

SVG = "{http://www.w3.org/2000/svg}"
CURVE = Curve(np.array([1.0, 2, 3]), np.array([10.0, 20, 30]), np.array([4.0, 1, 0.1]))
REACH = Reach(np.array([1, 2, 3]), np.array([1, 0.5, 0.25]), np.array([1, 0.4, 0.2]), np.array([1, 0.6, 0.3]))


def bins(shift: float) -> tuple[LengthBin, ...]:
    return tuple(
        LengthBin(low=low, high=high, num_examples=12, value=low + shift, interval=Interval(low - 1.0, low + 2.0))
        for low, high in ((1, 10), (11, 20), (21, None))
    )


def draw(kind: str, letters: str) -> str:
    number = len(letters)
    match kind:
        case "loss":
            return charts.course_chart("loss", [CURVE] * number, letters, by_time=False, train=[CURVE] * number)
        case "metric":
            return charts.course_chart("bleu", [CURVE, *[NO_CURVE] * (number - 1)], letters, by_time=True)
        case "length":
            return charts.length_chart("wer", [bins(shift) for shift in range(number)], letters, unit="words")
        case _:
            return charts.reach_chart("title", [REACH, *[None] * (number - 1)], letters, distance="steps")


@pytest.mark.parametrize("kind", ["loss", "metric", "length", "reach"])
@pytest.mark.parametrize("letters", ["A", "ABCDEFGH"])
def test_charts_are_drawn_in_our_colors_and_load_nothing(kind: str, letters: str) -> None:
    svg = draw(kind, letters)
    ElementTree.fromstring(svg)
    assert set(re.findall(r"#[0-9a-f]{6}", " ".join(re.findall(r'style="([^"]*)"', svg)))) <= set(NAMES)
    assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', svg))
    assert draw(kind, letters) == svg
    shown = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert ("A" in shown) == (len(letters) > 1)


def test_a_run_without_a_journal_does_not_hide_the_curves_of_others() -> None:
    svg = charts.course_chart("loss", [CURVE, NO_CURVE], "AB", by_time=True, train=[CURVE, NO_CURVE])
    shown = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert "A" in shown and "B" not in shown


def test_letters_of_lines_with_the_same_end_do_not_overlap() -> None:
    svg = charts.course_chart("bleu", [CURVE] * 3, "ABC", by_time=False)
    heights = [
        float(text.attrib["y"])
        for text in ElementTree.fromstring(svg).iter(f"{SVG}text")
        if text.text in ("A", "B", "C")
    ]
    assert len(heights) == 3
    first, second, third = sorted(heights)
    assert second - first >= 8.9 and third - second >= 8.9


def test_a_loss_that_falls_far_is_logarithmic() -> None:
    assert ">0.1<" in draw("loss", "A")
    level = Curve(CURVE.steps, CURVE.seconds, np.array([4.0, 3, 2]))
    assert ">0.1<" not in charts.course_chart("loss", [level], "A", by_time=False, train=[level])


def test_a_bin_without_an_interval_does_not_hide_the_others() -> None:
    alone = LengthBin(low=31, high=40, num_examples=1, value=3.0, interval=None)
    svg = charts.length_chart("wer", [(*bins(0)[:2], alone)], [""], unit="words")
    assert "FillBetween" in svg and "nan" not in svg


@pytest.mark.parametrize("name", ["a$b$\\frac.txt", "$x.txt", "_under.txt", "中文.txt"])
def test_a_file_s_name_is_a_label_of_the_diagram(name: str) -> None:
    confidences = np.array([0.9, 0.8, 0.3])
    result = reliability(
        confidences, confidences > 0.5, rule="r", warn_below=0.5, foreign=[(name, confidences)], num_resamples=10
    )
    shown = [text.text for text in ElementTree.fromstring(charts.reliability_chart(result)).iter(f"{SVG}text")]
    assert f"{name.removesuffix('.txt').lstrip('_')} (3)" in shown


def test_the_diagram_counts_right_and_wrong_answers_exactly() -> None:
    confidences, is_right = np.full(30_000, 0.95), np.arange(30_000) > 0
    result = reliability(confidences, is_right, rule="r", warn_below=0.5, num_resamples=0)
    svg = charts.reliability_chart(result)
    assert ">right (29,999)<" in svg and ">wrong (1)<" in svg


def test_labels_stay_as_they_are_on_a_page() -> None:
    labels = ["url(#a", 'href="#b', ' id="c', 'style="#1c2530']
    page = on_page(attention_map(np.full((1, 4), 0.25, np.float32), labels, ["x"]), "p-")
    shown = [text.text for text in ElementTree.fromstring(page).iter(f"{SVG}text")]
    assert shown == [label.replace(" ", "␣") for label in labels] + ["x"]


def test_colors_become_the_page_s() -> None:
    svg = '<svg><text style="fill: #1C2530; stroke:#0072b2">#0072b2</text></svg>'
    expected = '<svg><text style="fill: var(--ink,#1C2530); stroke:var(--series-1,#0072b2)">#0072b2</text></svg>'
    assert on_page(svg, "") == expected
    names = re.compile(r"--([a-z0-9-]+):")
    assert names.findall(variables(dark=True)) == names.findall(variables(dark=False)) == list(NAMES.values())


def read_map(svg: str) -> tuple[list[str], list[tuple[float, str]]]:
    """Returns the labels, and the opacity and description of each cell."""
    root = ElementTree.fromstring(svg)
    cells = [
        (float(cell.attrib["fill-opacity"]), cell.findtext(f"{SVG}title") or "") for cell in root.iter(f"{SVG}rect")
    ]
    return [text.text or "" for text in root.iter(f"{SVG}text")], cells


def test_cells_are_as_dark_as_the_weights() -> None:
    weights = np.array([[0.875, 0.12, 0.005], [0.0, 0.25, 0.75]], np.float32)
    labels, cells = read_map(attention_map(weights, ["▁l'été", "é", "</s>"], ["summer", "</s>"]))
    assert labels == ["␣l'été", "é", "</s>", "summer", "</s>"]
    assert cells == [
        (0.88, "summer ← ␣l'été: 0.88"),
        (0.12, "summer ← é: 0.12"),
        (0.25, "</s> ← é: 0.25"),
        (0.75, "</s> ← </s>: 0.75"),
    ]


def test_hostile_tokens_are_text() -> None:
    tokens = ["<script>", '"&\x00', " ", "x" * 40]
    labels, _ = read_map(attention_map(np.full((1, 4), 0.25, np.float32), tokens, ["</svg>"]))
    assert labels == ["<script>", '"&�', "␣", "x" * 15 + "…", "</svg>"]


@pytest.mark.parametrize("size", [1, 5, 49, 300])
def test_a_map_fits_its_frame_and_omits_cells_of_small_weights(size: int) -> None:
    weights = np.full((size, size), 1 / size, np.float32)
    svg = attention_map(weights, ["mot"] * size, ["word"] * size)
    root = ElementTree.fromstring(svg)
    cells = list(root.iter(f"{SVG}rect"))
    assert len(cells) == (size * size if size * MIN_WEIGHT <= 1 else 0)
    for cell in cells:
        assert float(cell.attrib["x"]) + float(cell.attrib["width"]) <= float(root.attrib["width"])
        assert float(cell.attrib["y"]) + float(cell.attrib["height"]) <= float(root.attrib["height"])


def traced(options: DecodingOptions) -> tuple[TracedSearch, Hypothesis]:
    """Returns the trace of a search and its best hypothesis."""
    batch = RunningBatch(FakeStepper(12), SPECIAL_IDS)
    batch.join([BatchRequest(0, [5, 6, 7, SPECIAL_IDS.eos], options)])
    traces, answers = {}, {}
    while batch.num_rows:
        report = batch.step()
        traces |= report.traces
        answers |= dict(report.finished)
    (search,) = traces[0]
    return search, answers[0][0]


def way_to_output(svg: str) -> list[str | None]:
    """Returns the labels of a tree's colored nodes, from the start."""
    return [
        group.findtext(f"{SVG}text")
        for group in ElementTree.fromstring(svg).iter(f"{SVG}g")
        if (box := group.find(f"{SVG}rect")) is not None and charts.HEAT in box.attrib["style"]
    ]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_tree_shows_the_way_to_the_output_and_what_was_cut(beam_size: int) -> None:
    search, best = traced(DecodingOptions(max_length=6, beam_size=beam_size, trace=4))
    svg = beam_tree(search, lambda ids: [f"<s{number}>" for number in ids])
    assert set(re.findall("#[0-9a-f]{6}", svg)) <= set(NAMES)
    groups = list(ElementTree.fromstring(svg).iter(f"{SVG}g"))
    ended = [SPECIAL_IDS.eos] * (len(best.token_log_probs) > len(best.token_ids))
    assert way_to_output(svg) == [f"<s{number}>" for number in (*best.token_ids, *ended)]
    titles = [group.findtext(f"{SVG}title") or "" for group in groups]
    assert any("cut: the beam was full of better ones" in title for title in titles)
    widths = [float(path.attrib["stroke-width"]) for path in ElementTree.fromstring(svg).iter(f"{SVG}path")]
    assert len(widths) == len(groups) and all(1 <= width <= 8 for width in widths)
    assert beam_tree(search, lambda ids: [f"<s{number}>" for number in ids]) == svg


def test_the_way_to_an_output_beyond_the_last_column_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    search, best = traced(DecodingOptions(max_length=6, min_length=5, beam_size=3, trace=4))
    monkeypatch.setattr(charts, "MAX_COLUMNS", 2)
    svg = beam_tree(search, lambda ids: [f"<s{number}>" for number in ids])
    assert way_to_output(svg) == [f"<s{number}>" for number in best.token_ids[:2]]
