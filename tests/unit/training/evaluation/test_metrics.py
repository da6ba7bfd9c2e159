"""Metrics on cases worked out by hand."""

from urllib.error import URLError

import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from attendant.runtime.errors import UserError
from attendant.training.evaluation.metrics import BleuTokenizer, TextMetricName, bleu_with, is_better, take_statistics

OUTPUTS = ["K AE T", "D AO G", "B ER D", "Z"]
REFERENCES = [("K AE T",), ("D AA G", "D AO  G"), ("B IH D", "B ER D Z S"), ("T OW T AH L", "T OW T")]


@pytest.mark.parametrize(
    ("metric", "outputs", "references", "value"),
    [
        ("exact_match", OUTPUTS, REFERENCES, 50.0),
        ("wer", OUTPUTS, REFERENCES, 50.0),
        # bird: 1 edit against 3 symbols, 2 against 5, so 1/3; total: 5 edits against 5 symbols, 3 against 3, so 3/3.
        ("per", OUTPUTS, REFERENCES, 100 * (0 + 0 + 1 + 3) / (3 + 3 + 3 + 3)),
        ("per", ["A B"], [("A", "A B C")], 100 / 3),  # the longest of equally near references
        ("per", [""], [("A B", "A B C")], 100.0),  # all deletions
        ("per", ["b c d e a"], [("a b c d e",)], 2 * 100 / 5),
        ("ter", ["b c d e a"], [("a b c d e",)], 100 / 5),  # a shift is one edit
    ],
)
def test_edits_are_those_to_the_nearest_reference(
    metric: TextMetricName, outputs: list[str], references: list[tuple[str, ...]], value: float
) -> None:
    assert take_statistics(metric, outputs, references).value == pytest.approx(value)


def test_bleu_and_chrf_are_sacrebleu_with_any_number_of_references() -> None:
    outputs = ["the cat sat on the mat .", "a dog barks at night ."]
    references = [("the cat sat on the mat .",), ("no", "a dog barks at night .")]
    for metric, library in (("bleu", BLEU()), ("chrf", CHRF()), ("ter", TER())):
        perfect = take_statistics(metric, outputs, references)  # type: ignore[arg-type]
        assert perfect.value == pytest.approx(0.0 if metric == "ter" else 100.0)
        assert perfect.rule.startswith("sacrebleu nrefs:var|")
        damaged = ["the cat sat on a mat", "dogs bark at night ."]
        streams = [[each[0] for each in references], [None, references[1][1]]]
        expected = library.corpus_score(damaged, streams).score
        assert take_statistics(metric, damaged, references).value == expected  # type: ignore[arg-type]
        assert 0 < expected < 90


def test_cer_counts_edits_of_characters_to_the_nearest_reference() -> None:
    outputs = ["hause", "a  cat", "", "日本"]
    references = [("mouse trap", "house"), ("a cat",), ("ab",), ("日本語",)]
    taken = take_statistics("cer", outputs, references)
    assert taken.rows.tolist() == [[1, 5], [0, 5], [2, 2], [1, 3]]
    assert taken.value == pytest.approx(100 * 4 / 15) and "characters" in taken.rule


@pytest.mark.parametrize("metric", ["per", "cer"])
def test_references_without_a_symbol_have_no_length(metric: TextMetricName) -> None:
    taken = take_statistics(metric, ["", "a"], [("",), ("",)])
    assert taken.values().tolist() == [0.0, 100.0] and taken.value == 100.0


@pytest.mark.parametrize(("tokenizer", "is_zero"), [("13a", True), ("zh", False), ("char", False), ("intl", True)])
def test_the_tokenizer_of_bleu_is_chosen_and_stated(tokenizer: BleuTokenizer, is_zero: bool) -> None:
    outputs, references = ["我今天去学校了。"], [("我昨天去学校了。",)]
    taken = take_statistics("bleu", outputs, references, tokenizer)
    assert f"|tok:{tokenizer}|" in taken.rule
    assert (taken.value == 0.0) == is_zero


@pytest.mark.parametrize(
    ("tokenizer", "error", "remedy"),
    [
        ("ja-mecab", RuntimeError("\nJapanese tokenization requires\n"), r"sacrebleu\[ja\]"),
        ("flores200", ImportError("\n\nPlease install"), "sentencepiece"),
        ("flores200", OSError("unreachable"), "unreachable: .* downloaded once"),
        ("flores200", URLError(OSError("unknown host")), "'flores200': unknown host: .* downloaded once"),
        ("flores200", SystemExit(1), "downloaded once"),
    ],
)
def test_a_missing_tokenizer_of_bleu_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tokenizer: BleuTokenizer, error: BaseException, remedy: str
) -> None:
    def refuse(tokenize: str) -> None:
        raise error

    monkeypatch.setattr("sacrebleu.metrics.bleu.BLEU", refuse)
    bleu_with.cache_clear()
    with pytest.raises(UserError, match=remedy) as caught:
        take_statistics("bleu", ["a"], [("a",)], tokenizer)
    assert f"evaluation.bleu_tokenizer = '{tokenizer}'" in str(caught.value) and "\n" not in str(caught.value)
    bleu_with.cache_clear()


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("rouge_1", 100 * (5 / 6 + 4 / 7 + 0) / 3),
        ("rouge_2", 100 * (3 / 5 + 0 + 0) / 3),
        ("rouge_l", 100 * (5 / 6 + 4 / 7 + 0) / 3),
    ],
)
def test_rouge_is_the_mean_of_the_best_reference(metric: TextMetricName, value: float) -> None:
    outputs = ["The cat sat on the mat.", "a dog barks", ""]
    references = [("The cat is on the mat!",), ("x", "a big, dog that"), ("nothing",)]
    result = take_statistics(metric, outputs, references)
    assert result.value == pytest.approx(value)
    assert f"rouge-score rouge{metric[-1].upper()}" in result.rule


def test_rouge_of_english_is_the_librarys_own() -> None:
    outputs = ["Runs 2 servers, don't they?", "snake_case e.g. this-one"]
    targets = ["they run 2 SERVERS; don't they", "snake case: this one, e.g."]
    kinds: tuple[TextMetricName, ...] = ("rouge_1", "rouge_2", "rouge_l")
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    for metric, name in zip(kinds, scorer.rouge_types, strict=True):
        own = [scorer.score(target, output)[name].fmeasure for output, target in zip(outputs, targets, strict=True)]
        result = take_statistics(metric, outputs, [(target,) for target in targets])
        assert result.values() == pytest.approx([100 * item for item in own])
        assert result.value == pytest.approx(100 * sum(own) / 2)


def test_rouge_counts_shared_repetitions_and_rouge_l_the_order() -> None:
    assert take_statistics("rouge_1", ["a a a b"], [("b a a c",)]).value == pytest.approx(75.0)
    assert take_statistics("rouge_l", ["a a a b"], [("b a a c",)]).value == pytest.approx(50.0)
    # Words may be of any script, and accents count.
    assert take_statistics("rouge_1", ["été à Genève"], [("ete a Geneve",)]).value == 0.0
    assert take_statistics("rouge_1", ["Привет МИР"], [("мир, привет",)]).value == pytest.approx(100.0)
    assert take_statistics("rouge_1", ["हिन्दी"], [("हानद",)]).value == 0.0


def test_the_lower_loss_is_better_at_equal_values() -> None:
    for metric in ("wer", "bleu"):
        assert is_better(metric, 2.0, 2.0, loss=0.9, best_loss=1.0)
        assert not is_better(metric, 2.0, 2.0, loss=1.0, best_loss=1.0)
        assert not is_better(metric, 2.0, 2.0, loss=1.1, best_loss=1.0)
    assert not is_better("wer", 3.0, 2.0, loss=0.0, best_loss=1.0)


def test_scoring_no_outputs_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to score"):
        take_statistics("wer", [], [])


@pytest.mark.parametrize(
    ("metric", "better"),
    [("wer", 1.0), ("per", 1.0), ("loss", 1.0), ("bleu", 3.0), ("exact_match", 3.0), ("rouge_l", 3.0)],
)
def test_each_metric_has_its_better_direction(metric: str, better: float) -> None:
    assert is_better(metric, better, 2.0)
    assert not is_better(metric, 4.0 - better, 2.0)
    assert not is_better(metric, 2.0, 2.0)
    assert is_better(metric, 2.0, None)
