"""Everything that is measured of one decoding of a test set."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, get_args

from pydantic import Field, field_validator

from attendant.runtime.bundle.manifest import GNMT_OFFSET
from attendant.runtime.decoding.options import DecodingOptions
from attendant.training.evaluation.bootstrap import DEFAULT_RESAMPLES, Interval, confidence_interval
from attendant.training.evaluation.decoding import Decoded, TextModel
from attendant.training.evaluation.lengths import LengthBin, LengthUnit, by_length, source_lengths
from attendant.training.evaluation.metrics import (
    DEFAULT_BLEU_TOKENIZER,
    BleuTokenizer,
    MetricName,
    PerplexityName,
    Statistics,
    take_statistics,
)
from attendant.training.evaluation.perplexity import perplexity_statistics, score_references
from attendant.training.table import Count, Table


class EvaluationConfig(Table):
    """`[evaluation]`: what is measured on the test split once the training is over.

    Attributes:
        metrics: the metrics to compute.
        bleu_tokenizer: cuts texts into the words of "bleu". "13a": for languages with spaces; "intl": the same by
            Unicode's punctuation; "zh": each Han character is a word; "char": each character is; "ja-mecab" and
            "ko-mecab" need packages, "flores101" and "flores200" a package and a download; "none": white space.
        beam_size: live hypotheses; 1: greedy.
        length_penalty: log P is divided by ((k + length) / (k + 1)) ^ length_penalty; 0: by nothing.
        length_penalty_offset: k; 5: as in GNMT (Wu et al. 2016, eq. 14); 0, with a penalty of 1: by the plain length.
        patience: a beam ends when patience * beam_size hypotheses have ended (Kasai et al. 2022); None: by the server's
            default rule.
        max_length: target tokens after which an output is cut; None: data.max_target_tokens. Raise it to measure the
            model on longer texts than it was trained on.
        length_edges: also measures every metric by the length of the source, in bins that end at these lengths; None:
            it does not.
        length_unit: unit of these lengths: words and punctuation marks, or tokens of the model's own tokenizer.
    """

    metrics: Annotated[tuple[MetricName, ...], Field(min_length=1)] = ("exact_match", "perplexity", "word_perplexity")
    bleu_tokenizer: BleuTokenizer = DEFAULT_BLEU_TOKENIZER
    beam_size: Count = 1
    length_penalty: Annotated[float, Field(ge=0.0)] = 0.0
    length_penalty_offset: Annotated[float, Field(ge=0.0, le=10.0)] = GNMT_OFFSET
    patience: Annotated[float, Field(gt=0.0)] | None = None
    max_length: Count | None = None
    length_edges: Annotated[tuple[Count, ...], Field(min_length=1)] | None = None
    length_unit: LengthUnit = "words"

    @field_validator("length_edges")
    @classmethod
    def edges_rise(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and list(value) != sorted(set(value)):
            raise ValueError("must be whole numbers that rise")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number with its protocol.

    Attributes:
        interval: 95 % bootstrap interval; None where there were no resamples.
        protocol: data, rule and decoding, in words.
        decoding: the options of the search.
        length_unit: what `by_length` counts; None where it was not asked for.
    """

    metric: MetricName
    value: float
    interval: Interval | None
    num_resamples: int
    protocol: str
    num_examples: int
    decoding: dict[str, Any]
    length_unit: LengthUnit | None = None
    by_length: tuple[LengthBin, ...] = ()

    def to_json(self) -> dict[str, Any]:
        content = asdict(self)
        if self.length_unit is None:
            del content["length_unit"], content["by_length"]
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What was measured of one decoding.

    Attributes:
        statistics: of each metric, in the order of `measurements`: what a comparison takes.
        bleu_tokenizer: that BLEU was taken with.
    """

    options: DecodingOptions
    bleu_tokenizer: BleuTokenizer
    statistics: tuple[Statistics, ...]
    measurements: tuple[Measurement, ...]

    @property
    def num_examples(self) -> int:
        return self.measurements[0].num_examples


def search_options(config: EvaluationConfig, model: TextModel) -> DecodingOptions:
    """The search that `config` asks for; outputs are cut where it says, or else where the model does."""
    return DecodingOptions(
        max_length=config.max_length or model.max_length,
        beam_size=config.beam_size,
        length_penalty=config.length_penalty,
        length_penalty_offset=config.length_penalty_offset,
        # Greedy search ends at its first EOS either way.
        patience=config.patience if config.beam_size > 1 else None,
    )


def evaluate(
    model: TextModel,
    decoded: Sequence[Decoded],
    options: DecodingOptions,
    metrics: Sequence[MetricName],
    *,
    data_name: str,
    bleu_tokenizer: BleuTokenizer = DEFAULT_BLEU_TOKENIZER,
    num_resamples: int = DEFAULT_RESAMPLES,
    length_edges: Sequence[int] | None = None,
    length_unit: LengthUnit = "words",
) -> Evaluation:
    """Takes every metric of what `model` has decoded.

    Args:
        decoded: not empty.
        options: what it was decoded with.
        data_name: what the protocol calls the data, e.g. "data/cmudict/test.tsv".
        bleu_tokenizer: for BLEU.
        num_resamples: of the bootstrap; 0: no intervals.
        length_edges: the metrics are taken by the source's length too, in bins that end there.
    """
    lengths = [] if length_edges is None else source_lengths(model, decoded, length_unit)
    statistics = tuple(_statistics(model, decoded, metrics, bleu_tokenizer))
    measurements = tuple(
        Measurement(
            metric=taken.metric,
            value=round(taken.value, 4),
            interval=confidence_interval(taken, num_resamples),
            num_resamples=num_resamples,
            protocol="; ".join((data_name, taken.rule, *_how(taken.metric, options))),
            num_examples=len(decoded),
            decoding={
                "beam_size": options.beam_size,
                "length_penalty": options.length_penalty,
                "max_length": options.max_length,
            }
            | _unusual(options),
            length_unit=None if length_edges is None else length_unit,
            by_length=()
            if length_edges is None
            else by_length(taken, lengths, length_edges, num_resamples=num_resamples),
        )
        for taken in statistics
    )
    return Evaluation(options=options, bleu_tokenizer=bleu_tokenizer, statistics=statistics, measurements=measurements)


def _statistics(
    model: TextModel, decoded: Sequence[Decoded], metrics: Sequence[MetricName], bleu_tokenizer: BleuTokenizer
) -> Iterator[Statistics]:
    outputs = [one.text for one in decoded]
    references = [one.example.references for one in decoded]
    scored = None
    for metric in metrics:
        match metric:
            case "perplexity" | "word_perplexity":
                scored = scored or score_references(model, decoded)
                yield perplexity_statistics(metric, scored)
            case _:
                yield take_statistics(metric, outputs, references, bleu_tokenizer)


def _how(metric: MetricName, options: DecodingOptions) -> Iterator[str]:
    """How the outputs were searched for; nothing for metrics that look at no outputs."""
    if metric not in get_args(PerplexityName):
        yield f"{describe_search(options)}, at most {options.max_length} tokens"


def describe_search(options: DecodingOptions) -> str:
    if options.beam_size == 1:
        return "greedy"
    said = [f"beam {options.beam_size}", f"length penalty {options.length_penalty:g}"]
    said += [f"{name.replace('length_penalty_', '')} {value:g}" for name, value in _unusual(options).items()]
    return ", ".join(said)


def _unusual(options: DecodingOptions) -> dict[str, float]:
    """The options that are said only where they make a difference to the defaults."""
    found = {}
    if options.length_penalty and options.length_penalty_offset != GNMT_OFFSET:
        found["length_penalty_offset"] = options.length_penalty_offset
    if options.patience is not None:
        found["patience"] = options.patience
    return found
