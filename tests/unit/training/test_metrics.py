"""Metrics on cases worked out by hand."""

import pytest

from training.metrics import MetricName, is_better, score

OUTPUTS = ["K AE T", "D AO G", "B ER D", "Z"]
REFERENCES = [("K AE T",), ("D AA G", "D AO  G"), ("B IH D", "B ER D Z S"), ("T OW T AH L", "T OW T")]


def test_a_word_is_right_if_it_equals_any_reference() -> None:
    assert score("wer", OUTPUTS, REFERENCES).value == 50.0
    assert score("exact_match", OUTPUTS, REFERENCES).value == 50.0
    assert "none of the listed" in score("wer", OUTPUTS, REFERENCES).rule


def test_per_counts_edits_to_the_nearest_reference() -> None:
    # bird: 1 edit against 3 symbols, 2 against 5, so 1/3; total: 5 edits against 5 symbols, 3 against 3, so 3/3.
    assert score("per", OUTPUTS, REFERENCES).value == pytest.approx(100 * (0 + 0 + 1 + 3) / (3 + 3 + 3 + 3))


def test_per_takes_the_longest_of_equally_near_references() -> None:
    assert score("per", ["A B"], [("A", "A B C")]).value == pytest.approx(100 / 3)


def test_per_of_an_empty_output_is_all_deletions() -> None:
    assert score("per", [""], [("A B", "A B C")]).value == 100.0


def test_bleu_and_chrf_are_sacrebleu_with_any_number_of_references() -> None:
    outputs = ["the cat sat on the mat .", "a dog barks at night ."]
    references = [("the cat sat on the mat .",), ("no", "a dog barks at night .")]
    for metric in ("bleu", "chrf"):
        perfect = score(metric, outputs, references)  # type: ignore[arg-type]
        assert perfect.value == pytest.approx(100.0)
        assert perfect.rule.startswith("sacrebleu nrefs:")
        assert score(metric, outputs[::-1], references).value < 50  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        # What rouge-score 0.1.2 says of the same texts (F-measure, no stemming, the best of several references).
        ("rouge_1", 100 * (5 / 6 + 4 / 7 + 0) / 3),
        ("rouge_2", 100 * (3 / 5 + 0 + 0) / 3),
        ("rouge_l", 100 * (5 / 6 + 4 / 7 + 0) / 3),
    ],
)
def test_rouge(metric: MetricName, value: float) -> None:
    outputs = ["The cat sat on the mat.", "a dog barks", ""]
    references = [("The cat is on the mat!",), ("a big, dog that", "x"), ("nothing",)]
    assert score(metric, outputs, references).value == pytest.approx(value)


def test_rouge_counts_a_repeated_word_as_often_as_both_have_it_and_the_order_where_it_matters() -> None:
    assert score("rouge_1", ["a a a b"], [("b a a c",)]).value == pytest.approx(75.0)
    assert score("rouge_l", ["a a a b"], [("b a a c",)]).value == pytest.approx(50.0)
    # Words of any script.
    assert score("rouge_1", ["Привет МИР"], [("мир, привет",)]).value == pytest.approx(100.0)


def test_of_equal_values_the_one_with_the_lower_loss_is_better() -> None:
    for metric in ("wer", "bleu"):
        assert is_better(metric, 2.0, 2.0, loss=0.9, best_loss=1.0)
        assert not is_better(metric, 2.0, 2.0, loss=1.0, best_loss=1.0)
        assert not is_better(metric, 2.0, 2.0, loss=1.1, best_loss=1.0)
    assert not is_better("wer", 3.0, 2.0, loss=0.0, best_loss=1.0)


def test_nothing_is_not_scored() -> None:
    with pytest.raises(ValueError, match="nothing to score"):
        score("wer", [], [])


@pytest.mark.parametrize(
    ("metric", "better"),
    [("wer", 1.0), ("per", 1.0), ("loss", 1.0), ("bleu", 3.0), ("exact_match", 3.0), ("rouge_l", 3.0)],
)
def test_knows_which_way_is_better(metric: str, better: float) -> None:
    assert is_better(metric, better, 2.0)
    assert not is_better(metric, 4.0 - better, 2.0)
    assert not is_better(metric, 2.0, 2.0)
    assert is_better(metric, 2.0, None)
