"""Tests of intervals and comparisons against resampling by hand and against sacrebleu's paired test, and of bins of
lengths on cases worked out by hand.
"""

import random
from typing import get_args

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from attendant.runtime.bundle.tokenizer import EOS_ID
from attendant.training.data.pairs import Example
from attendant.training.data.tokenization import TokenizerConfig, train_tokenizer
from attendant.training.evaluation import bootstrap
from attendant.training.evaluation.bootstrap import (
    DEFAULT_RESAMPLES,
    SEED,
    Interval,
    by_length,
    compare,
    confidence_interval,
    interval_text,
    resampled_totals,
    resampled_values,
    value_text,
)
from attendant.training.evaluation.evaluating import Decoded, source_lengths
from attendant.training.evaluation.metrics import Statistics, TextMetricName, take_statistics
from tests.text_models import fake_text_model

WORDS = ["the", "court", "of", "a", "green", "river", "ran", "under", "every", "small", "house", "near", "its", "sea"]


def texts(count: int, share_right: float, seed: int = 1) -> tuple[list[str], list[tuple[str, ...]]]:
    """Returns outputs with about `share_right` of their words right, and one to three references of each.

    The references depend only on `count`.
    """
    words, damage = random.Random(count), random.Random(seed)
    outputs, references = [], []
    for _ in range(count):
        targets = [words.choices(WORDS, k=words.randint(3, 12)) for _ in range(words.randint(1, 3))]
        outputs.append(" ".join(w if damage.random() < share_right else damage.choice(WORDS) for w in targets[0]))
        references.append(tuple(map(" ".join, targets)))
    return outputs, references


@pytest.mark.parametrize("metric", get_args(TextMetricName))
def test_resamples_have_the_values_of_scoring_their_texts_again(metric: TextMetricName) -> None:
    outputs, references = texts(23, 0.7)
    values = resampled_values(take_statistics(metric, outputs, references), 40)
    generator = np.random.default_rng(SEED)
    for value in values:
        drawn = generator.integers(len(outputs), size=len(outputs))
        again = take_statistics(metric, [outputs[i] for i in drawn], [references[i] for i in drawn])
        assert value == pytest.approx(again.value, abs=1e-9)
    assert len(set(values)) > 5


def test_the_size_of_the_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(3).integers(0, 9, (50, 4)).astype(float)
    whole = resampled_totals(rows, 33)
    for counts in (1, 50, 499):
        monkeypatch.setattr(bootstrap, "BLOCK_COUNTS", counts)
        assert np.array_equal(resampled_totals(rows, 33), whole)


def test_an_interval_is_as_wide_as_the_normal_approximation() -> None:
    # 30 of 100 right: the normal approximation gives 30 +- 1.96 * sqrt(0.3 * 0.7 / 100), in %.
    right = np.arange(100) < 30
    statistics = counts(right)
    result = confidence_interval(statistics)
    assert result is not None
    assert result.low == pytest.approx(30 - 8.98, abs=1.1) and result.high == pytest.approx(30 + 8.98, abs=1.1)
    assert confidence_interval(statistics, 0) is None


def test_equal_examples_have_an_interval_of_width_zero() -> None:
    assert confidence_interval(counts(np.ones(7, bool))) == Interval(100.0, 100.0)


def test_values_of_many_digits_are_shown_in_powers_of_ten() -> None:
    assert interval_text(Interval(12.5, 1.5e85)) == "12.50 to 1.5e+85"
    assert (value_text(-3.0, sign="+"), value_text(2.5e7, sign="+")) == ("-3.00", "+2.5e+07")


def test_a_paired_difference_is_narrower_than_two_intervals() -> None:
    # `baseline` is right on about half of the examples, and `better` also on every twentieth. Without pairing, their
    # intervals overlap widely.
    baseline = np.random.default_rng(5).random(400) < 0.5
    better = baseline | (np.arange(400) % 20 == 0)
    difference = compare(counts(better), counts(baseline))
    assert difference.value == pytest.approx(100 * (better.sum() - baseline.sum()) / 400)
    assert difference.interval is not None and difference.interval.low > 0
    assert difference.p_value is not None and difference.p_value < 0.01
    ours, theirs = confidence_interval(counts(better)), confidence_interval(counts(baseline))
    assert ours is not None and theirs is not None and ours.low < theirs.high


def test_equal_systems_have_a_difference_of_zero() -> None:
    statistics = counts(np.random.default_rng(5).random(60) < 0.5)
    difference = compare(statistics, statistics)
    assert (difference.value, difference.interval, difference.p_value) == (0.0, Interval(0.0, 0.0), 1.0)
    assert compare(statistics, statistics, 0).p_value is None


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_p_values_are_twice_sacrebleus_which_count_one_side(metric: TextMetricName) -> None:
    outputs, references = texts(150, 0.70)
    others, same = texts(150, 0.76, seed=2)
    assert references == same
    result = compare(take_statistics(metric, others, references), take_statistics(metric, outputs, references))
    streams = [[each[k] if k < len(each) else None for each in references] for k in range(3)]
    test = PairedTest(
        [("baseline", outputs), ("other", others)],
        {"metric": BLEU() if metric == "bleu" else CHRF()},
        references=streams,
        test_type="bs",
        n_samples=DEFAULT_RESAMPLES,
    )
    _, scores = test()
    baseline, other = next(results for name, results in scores.items() if name != "System")
    assert result.value == pytest.approx(other.score - baseline.score, abs=1e-3)
    assert result.p_value == pytest.approx(2 * other.p_value, abs=0.02)  # sacrebleu draws other resamples
    assert 0.002 < other.p_value < 0.1


def counts(right: np.ndarray) -> Statistics:
    outputs = ["a" if item else "b" for item in right]
    return take_statistics("exact_match", outputs, [("a",)] * len(outputs))


TOKENIZER = train_tokenizer(TokenizerConfig(tokenizer="character"), ["ab cd"])


def test_a_bin_includes_its_upper_edge() -> None:
    lengths = [1, 10, 11, 30, 31, 500]
    statistics = take_statistics("exact_match", ["x", "y", "x", "x", "y", "y"], [("x",)] * 6)
    bins = by_length(statistics, lengths, (10, 20, 30), num_resamples=10)
    assert [(item.name, item.num_examples, item.value) for item in bins] == [
        ("1-10", 2, 50.0), ("11-20", 1, 100.0), ("21-30", 1, 100.0), ("31+", 2, 0.0),
    ]  # fmt: skip
    assert bins[1].interval is None, "one example has no interval"


def test_a_bin_without_examples_is_left_out_and_no_resamples_give_no_interval() -> None:
    statistics = take_statistics("exact_match", ["x", "x"], [("x",)] * 2)
    (only,) = by_length(statistics, [25, 30], (10, 20, 30), num_resamples=0)
    assert (only.low, only.high, only.interval) == (21, 30, None)


def test_words_count_punctuation_and_tokens_are_the_tokenizers_without_eos() -> None:
    decoded = [Decoded(example=Example("ab cd", ("x",)), source_ids=(*TOKENIZER.encode("ab cd"), EOS_ID))]
    model = fake_text_model(source_tokenizer=TOKENIZER)
    assert source_lengths(model, decoded, "words") == [2]
    assert source_lengths(model, [Decoded(example=Example("Don't do it, ever.", ("x",)))], "words") == [6]
    assert source_lengths(model, decoded, "tokens") == [5]
    assert source_lengths(model, [Decoded(example=Example("ab cd", ("x",)))], "tokens") == [0]
