"""Tests of a report's curves from the journal, of its bins of lengths, and of the outputs that it shows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendant.runtime.decoding.hypothesis import FinishReason
from attendant.runtime.errors import UserError
from attendant.training.data.pairs import Example
from attendant.training.evaluation.evaluating import Decoded
from attendant.training.evaluation.metrics import TextMetricName
from attendant.training.report.curves import MAX_POINTS, Curve, read_curves
from attendant.training.report.judging import Span, align, changes_since, judge, nearest_reference, rank
from attendant.training.report.measuring import MAX_BINS, choose_examples, natural_edges, natural_unit
from attendant.training.run.directory import Run


def write(folder: Path, *events: dict[str, Any], rest: str = "") -> Run:
    run = Run(folder)
    run.metrics_path.write_text("".join(json.dumps(event) + "\n" for event in events) + rest)
    return run


def event(kind: str, step: int, **values: float) -> dict[str, Any]:
    return {"event": kind, "step": step, "epoch": 0, "seconds": step / 10} | values


def test_a_journal_becomes_curves(tmp_path: Path) -> None:
    run = write(
        tmp_path,
        event("train", 2, loss=3.0, learning_rate=0.1),
        event("train", 4, loss=2.0, learning_rate=0.1),
        event("validation", 4, loss=2.5, bleu=7.0),
        rest='{"event": "train", "st',
    )
    curves = read_curves(run)
    assert curves.train_loss.steps.tolist() == [2, 4] and curves.train_loss.values.tolist() == [3, 2]
    assert list(curves.validation) == ["loss", "bleu"]
    assert curves.validation["bleu"].seconds.tolist() == [0.4] and curves.validation["bleu"].values.tolist() == [7]


def test_a_run_without_a_journal_has_no_curve(tmp_path: Path) -> None:
    curves = read_curves(Run(tmp_path))
    assert not len(curves.train_loss) and not curves.validation


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"\xff\xfe",
        b'{"event": "train", "step": 1, "seconds": "x", "loss": 2}',
        b'{"event": "validation", "step": 1, "seconds": 1, "bleu": [1]}',
    ],
)
def test_a_line_that_is_no_event_is_named(tmp_path: Path, line: bytes) -> None:
    run = write(tmp_path, event("train", 2, loss=3.0))
    run.metrics_path.write_bytes(run.metrics_path.read_bytes() + line + b"\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:2"):
        read_curves(run)


def test_long_curves_are_averaged_in_groups() -> None:
    steps = np.arange(4.0 * MAX_POINTS)
    thinned = Curve(steps, steps / 10, steps % 4).thinned()
    assert len(thinned) == MAX_POINTS
    assert set(thinned.values) == {1.5} and thinned.steps[0] == 1.5
    short = Curve(steps[:3], steps[:3], steps[:3])
    assert short.thinned() is short


@pytest.mark.parametrize(
    ("lengths", "edges"),
    [
        ([5] * 50, (5,)),
        (list(range(3, 14)) * 20, (4, 6, 8, 10, 12)),
        (list(range(1, 26)) * 10, (5, 10, 15, 20)),
        (list(range(1, 46)) * 10, (10, 20, 30, 40)),
        (list(range(200, 420)) * 2, (250, 300, 350, 400)),
    ],
)
def test_edges_are_round_and_suit_the_lengths(lengths: list[int], edges: tuple[int, ...]) -> None:
    assert natural_edges(lengths) == edges


@pytest.mark.parametrize("seed", range(20))
def test_bins_are_few_and_the_first_has_enough_examples(seed: int) -> None:
    generator = np.random.default_rng(seed)
    lengths = np.maximum(1, generator.lognormal(generator.uniform(0, 6), generator.uniform(0, 1.5), 2000)).astype(int)
    edges = natural_edges(lengths.tolist())
    assert 1 <= len(edges) < MAX_BINS and list(edges) == sorted(set(edges)) and edges[0] > 0
    counts = np.histogram(lengths, [0, *(np.array(edges) + 0.5), np.inf])[0]
    assert counts[0] >= 10


def test_the_unit_is_words_if_texts_have_several() -> None:
    assert natural_unit(["a longer sentence here", "two words", "and three words"]) == "words"
    assert natural_unit(["phoneme", "attention", "New York"]) == "tokens"


def decoded(text: str, log_prob: float, *references: str, source: str = "s", num_tokens: int | None = None) -> Decoded:
    length = len(text.split()) if num_tokens is None else num_tokens
    return Decoded(
        example=Example(source, references),
        source_ids=tuple(range(4, 4 + len(source))),
        text=text,
        token_ids=(5,) * length,
        log_prob=log_prob,
        score=log_prob,
        finish_reason=FinishReason.EOS,
    )


OUTPUTS = [
    decoded("a b", -3.0, "a b", source="right"),
    decoded("a c", -0.3, "a b", source="sure"),
    decoded("c d", -6.0, "a b", source="lost"),
    decoded("c d", -0.6, "a b", source="lost and sure"),
    decoded("a b c", -0.4, "x", "a b c", source="right, long"),
    Decoded(example=Example("nothing left", ("a",))),
]


def test_single_outputs_are_ranked_by_a_graded_metric() -> None:
    judged = judge(OUTPUTS, "exact_match")
    assert [item.metric for item in judged] == ["per"] * 5
    assert [item.value for item in judged] == [0, 50, 100, 100, 0]
    assert judged[0].confidence == -1.0  # the mean of two symbols and EOS
    assert judge(OUTPUTS, "bleu")[0].metric == judge(OUTPUTS, "chrf")[0].metric == "chrf"
    assert judge(OUTPUTS[-1:], "per") == []


@pytest.mark.parametrize("metric", ["wer", "chrf"])
def test_lists_begin_with_the_most_extreme(metric: str) -> None:
    rankings = rank(judge(OUTPUTS, metric))
    first = {ranking.title.split(";")[0]: ranking.entries[0].decoded.example.source for ranking in rankings}
    assert first == {
        "Worst by the metric": "lost and sure",
        "Wrong, and surest of it": "sure",
        "Least sure": "lost",
        "Best by the metric": "right, long",
        "Surest": "right",
    }
    shown = [id(item) for ranking in rankings for item in ranking.entries]
    assert len(shown) == len(set(shown)) == 5, "each output is shown once"


def test_right_and_wrong_of_whole_words_is_graded_by_characters() -> None:
    words = [decoded("hause", -1.0, "house"), decoded("xyz", -1.0, "mouse"), decoded("cat", -1.0, "cat")]
    judged = judge(words, "exact_match")
    assert {item.metric for item in judged} == {"cer"}
    assert [item.value for item in judged] == [20, 100, 0]
    sentences = [decoded("the house is old", -1.0, "the houses are old")]
    assert judge(sentences, "wer")[0].metric == "cer"


def test_ignored_characters_make_no_output_wrong() -> None:
    outputs = [decoded("F OW0", -1.0, "F OW1"), decoded("F OW0", -1.0, "F AA1")]
    assert [entry.is_right for entry in judge(outputs, "exact_match")] == [False, False]
    judged = judge(outputs, "exact_match", "012")
    assert [(entry.is_right, entry.value) for entry in judged] == [(True, 0), (False, 50)]
    assert judged[0].decoded.text == "F OW0"


def test_without_wrong_outputs_there_is_no_list_of_them() -> None:
    titles = [ranking.title for ranking in rank(judge(OUTPUTS[:1] * 4, "per"))]
    assert len(titles) == 3 and not any("rong" in title for title in titles)
    assert rank([]) == ()


def test_texts_are_aligned_word_by_word() -> None:
    output, reference = "the cat sat on a mat", "the cat is on a red mat"
    spans, other_spans = align(output, reference)
    assert spans == (
        Span("the cat", True, " "),
        Span("sat", False, " "),
        Span("on a", True, " "),
        Span("mat", True),
    )
    assert [span.text for span in other_spans if not span.is_shared] == ["is", "red"]
    assert align("", reference)[0] == ()
    assert nearest_reference(output, ["a dog", reference, "the mat"]) == reference


@pytest.mark.parametrize(
    ("text", "other", "metric", "differing"),
    [
        ("a hause", "a house", "cer", ["a"]),
        ("hause", "house", "per", ["a"]),
        ("入口", "出口", "chrf", ["入"]),
        ("ssa", "nas", "cer", ["s", "a"]),
    ],
)
def test_words_are_aligned_character_by_character(
    text: str, other: str, metric: TextMetricName, differing: list[str]
) -> None:
    spans, other_spans = align(text, other, metric)
    shared = [[span.text for span in each if span.is_shared] for each in (spans, other_spans)]
    assert shared[0] == shared[1], "both texts show the same alignment"
    assert "".join(span.text + span.space for span in spans) == text
    assert [span.text for span in spans if not span.is_shared] == differing
    assert nearest_reference("hause", ["mouse trap", "house", "cat"], "cer") == "house"


def test_texts_of_megabytes_are_aligned_by_words() -> None:
    assert len(align("ab " * 3000, "ab " * 3000, "cer")[0]) == 1


def test_examples_are_a_number_or_a_file(tmp_path: Path) -> None:
    examples = [Example(str(number), ("x",)) for number in range(10)]
    assert [item.source for item in choose_examples("2", examples)] == ["0", "5"]
    path = tmp_path / "mine.txt"
    path.write_text("l'été\tsummer\n\nphoneme\r\n")
    assert choose_examples(str(path), examples) == [Example("l'été", ("summer",)), Example("phoneme", ())]
    path.write_text(f"l'été\t{'summer ' * 4000}\n")
    with pytest.raises(UserError, match="a text of more than 20,000 characters"):
        choose_examples(str(path), examples)
    path.write_text("\n")
    with pytest.raises(UserError, match="write one per line"):
        choose_examples(str(path), examples)
    with pytest.raises(UserError, match=r"a\.jsonl: .* this is a table"):
        choose_examples("a.jsonl", examples)
    with pytest.raises(UserError, match="none: there is no such file"):
        choose_examples(str(tmp_path / "none"), examples)


def test_changes_are_of_the_same_sources_largest_first() -> None:
    examples = [Example(name, ("a b",)) for name in ("same", "better", "much better", "worse", "as good", "only here")]

    def outputs(*texts: str) -> list[Decoded]:
        return [replace(decoded(text, -1.0), example=example) for text, example in zip(texts, examples, strict=False)]

    former = judge(outputs("a c", "a c", "c d", "a b", "a c"), "per")
    now = judge(list(reversed(outputs("a  c", "a b", "a b", "a c", "a d", "a b"))), "per")
    changes = changes_since(former, now)
    assert (changes.num_same, changes.num_better, changes.num_worse, changes.num_equal) == (1, 2, 1, 1)
    assert [change.now.decoded.example.source for change in changes.better] == ["much better", "better"]
    assert [change.former.value for change in changes.better] == [100, 50]
    assert [change.now.decoded.example.source for change in changes.worse] == ["worse"]
