"""Tests of the quality that int8 may lose as the default precision, and of beams that are worse than greedy search."""

import re

import pytest

from attendant.export.verification import quality
from attendant.runtime.bundle.manifest import Certificate, Evaluation, Precision, TokenAgreement
from attendant.training.data.pairs import Example
from attendant.training.evaluation.evaluating import EvaluationConfig, decode_examples, search_options
from attendant.training.evaluation.session import EvaluationData
from tests.text_models import fake_text_model


def entry(metric: str, precision: Precision, difference: float | None) -> Evaluation:
    return Evaluation(
        metric=metric, value=30.0, protocol="test", num_examples=9, precision=precision, difference=difference
    )


@pytest.mark.parametrize(
    ("metric", "difference", "expected"),
    [
        ("bleu", -0.15, "int8"),
        ("bleu", -0.16, "fp32"),
        ("wer", 0.2, "int8"),
        ("wer", 0.21, "fp32"),
    ],
)
def test_int8_is_preferred_if_it_loses_little_quality(metric: str, difference: float, expected: str) -> None:
    measured = [entry(metric, "fp32", None), entry(metric, "int8", difference), entry("per", "int8", 0.0)]
    assert quality.preferred_precision(measured) == expected


def measured(protocol: str, value: float, num_examples: int = 9) -> Evaluation:
    return Evaluation(metric="wer", value=value, protocol=protocol, num_examples=num_examples)


def test_a_repeated_measurement_replaces_the_former_one() -> None:
    former = [
        measured("data/words/test.tsv; % of words; beam 4", 26.22),
        measured("data/words/test.tsv; % of words; greedy", 26.4),
        measured("data/words/short.tsv; % of words; beam 4", 20.0),
        measured("other/test.tsv; % of words; beam 4", 30.0, num_examples=8),
    ]
    again = measured("/home/me/words/test.tsv; % of words; beam 4", 26.16)
    assert quality.with_measured(former, [again]) == (*former[1:], again)


def test_a_precision_without_measurements_is_not_preferred() -> None:
    assert quality.preferred_precision([entry("bleu", "fp32", None)]) == "fp32"
    assert quality.losses([entry("wer", "int8", 0.1), entry("bleu", "int8", 0.1)]) == {"wer": 0.1, "bleu": -0.1}
    assert quality.losses([entry("perplexity", "int8", 9.0)]) == {}, "perplexity does not measure outputs"


def agreement(num_identical: int, precision: Precision = "int8") -> Certificate:
    tokens = TokenAgreement(num_compared=384, num_identical=num_identical, num_excused=0)
    return Certificate.model_construct(precision=precision, tokens=tokens)


def int8(metric: str, value: float, difference: float = 0.0) -> Evaluation:
    return entry(metric, "int8", difference).model_copy(update={"value": value})


@pytest.mark.parametrize(
    ("measured", "num_identical", "pattern"),
    [
        (
            [int8("exact_match", 0.0), int8("perplexity", 2.2e9)],
            211,
            r"fp32 itself fails on this data \(exact_match 0\)",
        ),
        ([int8("bleu", 1.5, -0.4)], 384, r"fails on this data \(bleu 1.9\)"),
        # A morphologically rich language: few words are right, but many letters.
        ([int8("bleu", 1.5), int8("chrf", 40.0)], 384, ""),
        ([int8("per", 130.0), int8("wer", 100.0)], 384, r"\(per 130, wer 100\)"),
        ([int8("bleu", 30.0), int8("perplexity", 50.0)], 384, r"\(perplexity 50, guessing has 40\)"),
        ([int8("wer", 26.0)], 191, r"only 191 of 384 decodings are identical to fp32's, must be 50%"),
        ([int8("wer", 26.0)], 192, ""),
    ],
)
def test_data_on_which_the_model_fails_decide_nothing_about_int8(
    measured: list[Evaluation], num_identical: int, pattern: str
) -> None:
    reason = quality.doubt(measured, [agreement(0, "fp32"), agreement(num_identical)], 40)
    assert re.search(pattern, reason) if pattern else reason == ""


def test_metrics_that_lose_too_much_are_named_with_their_limit() -> None:
    measured = [entry("bleu", "int8", -0.13), entry("chrf", "int8", -0.2), entry("wer", "int8", 0.3)]
    assert quality.too_costly(measured) == {"chrf": 0.15, "wer": 0.2}
    assert quality.preferred_precision(measured) == "fp32"


MODEL = fake_text_model()


def measured_where_right_is(right: EvaluationConfig) -> tuple[tuple[Evaluation, ...], list[str]]:
    """Measures beams of 3 on a set whose references are the outputs of another search; returns the advice too."""
    examples = [Example(source, ("?",)) for source in ("ab", "ba", "cd", "dc", "abc", "dcb", "a", "d")]
    outputs = decode_examples(MODEL, examples, search_options(right, MODEL))
    data = EvaluationData("words.tsv", [Example(output.example.source, (output.text,)) for output in outputs])
    served = EvaluationConfig(metrics=("perplexity", "exact_match", "per"), beam_size=3)
    measurement = quality.QualityMeasurement(data=data, config=served, model_of=lambda stepper: MODEL)
    return measurement.take({"fp32": MODEL.stepper, "int8": MODEL.stepper}), measurement.advice


def test_beams_that_are_worse_than_greedy_search_are_reported() -> None:
    evaluations, (line,) = measured_where_right_is(EvaluationConfig(beam_size=1))
    assert [(evaluation.precision, evaluation.metric) for evaluation in evaluations] == [
        *((precision, metric) for precision in ("fp32", "int8") for metric in ("perplexity", "exact_match", "per")),
        ("fp32", "exact_match"),
        ("fp32", "per"),
    ]
    beam, greedy = evaluations[1], evaluations[6]
    assert "beam 3" in beam.protocol and "greedy" in greedy.protocol
    assert greedy.value == 100.0 > beam.value and greedy.difference is None
    assert line == (
        f"beams of 3 are worse than greedy search: exact_match {beam.value:g}, greedy 100, on 8 examples; export with "
        "--beam-size 1, or with another --patience"
    )
    assert evaluations[4].difference == 0.0
    assert measured_where_right_is(EvaluationConfig(beam_size=3))[1] == []


def test_quality_is_measured_with_the_settings_of_the_run() -> None:
    """Checks that the recipe's BLEU tokenizer and ignored characters apply."""
    config = EvaluationConfig(metrics=("bleu", "per"), bleu_tokenizer="char", ignored_characters="x")
    data = EvaluationData("words.tsv", [Example("ab", ("abcd",))])
    measurement = quality.QualityMeasurement(data=data, config=config, model_of=lambda stepper: MODEL)
    bleu, per = measurement.take({"fp32": MODEL.stepper})
    assert "tok:char" in bleu.protocol and "without the characters 'x'" in per.protocol
