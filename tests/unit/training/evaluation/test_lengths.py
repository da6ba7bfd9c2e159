"""Bins of lengths on cases worked out by hand."""

from attendant.runtime.bundle.tokenizer import EOS_ID
from attendant.training.data.pairs import Example
from attendant.training.data.tokenization import TokenizerConfig, train_tokenizer
from attendant.training.evaluation.bootstrap import Interval, by_length
from attendant.training.evaluation.evaluating import Decoded, TextModel, source_lengths
from attendant.training.evaluation.metrics import take_statistics
from tests.fakes import SPECIAL_IDS, FakeStepper

TOKENIZER = train_tokenizer(TokenizerConfig(tokenizer="character"), ["ab cd"])


def test_a_bin_ends_with_its_edge() -> None:
    lengths = [1, 10, 11, 30, 31, 500]
    statistics = take_statistics("exact_match", ["x", "y", "x", "x", "y", "y"], [("x",)] * 6)
    bins = by_length(statistics, lengths, (10, 20, 30), num_resamples=10)
    assert [(one.name, one.num_examples, one.value) for one in bins] == [
        ("1-10", 2, 50.0), ("11-20", 1, 100.0), ("21-30", 1, 100.0), ("31+", 2, 0.0),
    ]  # fmt: skip
    assert bins[1].interval == Interval(100.0, 100.0)


def test_a_bin_without_examples_is_left_out_and_no_resamples_give_no_interval() -> None:
    statistics = take_statistics("exact_match", ["x", "x"], [("x",)] * 2)
    (only,) = by_length(statistics, [25, 30], (10, 20, 30), num_resamples=0)
    assert (only.low, only.high, only.interval) == (21, 30, None)


def test_words_count_punctuation_and_tokens_are_the_tokenizers_without_eos() -> None:
    decoded = [Decoded(example=Example("ab cd", ("x",)), source_ids=(*TOKENIZER.encode("ab cd"), EOS_ID))]
    model = TextModel(
        stepper=FakeStepper(),
        source_tokenizer=TOKENIZER,
        target_tokenizer=TOKENIZER,
        special_ids=SPECIAL_IDS,
        append_eos=True,
        max_length=5,
    )
    assert source_lengths(model, decoded) == [2]
    assert source_lengths(model, [Decoded(example=Example("Don't do it, ever.", ("x",)))]) == [6]
    assert source_lengths(model, decoded, "tokens") == [5]
    assert source_lengths(model, [Decoded(example=Example("ab cd", ("x",)))], "tokens") == [0]
