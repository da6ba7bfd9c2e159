"""Everything that is measured of one decoding of a test set."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from attendant.runtime.decoding.options import DecodingOptions
from attendant.training.evaluation.bootstrap import DEFAULT_RESAMPLES, Interval, confidence_interval
from attendant.training.evaluation.config import EvaluationConfig
from attendant.training.evaluation.decoding import Decoded, TextModel
from attendant.training.evaluation.lengths import LengthBin, LengthUnit, by_length, source_lengths
from attendant.training.evaluation.metrics import MetricName, Statistics, take_statistics


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
    """

    options: DecodingOptions
    statistics: tuple[Statistics, ...]
    measurements: tuple[Measurement, ...]

    @property
    def num_examples(self) -> int:
        return self.measurements[0].num_examples


def search_options(config: EvaluationConfig, model: TextModel) -> DecodingOptions:
    """The search that `config` asks for; outputs are cut where it says, or else where the model does."""
    options = DecodingOptions(
        max_length=config.max_length or model.max_length,
        beam_size=config.beam_size,
        length_penalty=config.length_penalty,
    )
    return options if config.patience is None else replace(options, patience=config.patience)


def evaluate(
    model: TextModel,
    decoded: Sequence[Decoded],
    options: DecodingOptions,
    metrics: Sequence[MetricName],
    *,
    data_name: str,
    num_resamples: int = DEFAULT_RESAMPLES,
    length_edges: Sequence[int] | None = None,
    length_unit: LengthUnit = "words",
) -> Evaluation:
    """Takes every metric of what `model` has decoded.

    Args:
        decoded: not empty.
        options: what it was decoded with.
        data_name: what the protocol calls the data, e.g. "data/cmudict/test.tsv".
        num_resamples: of the bootstrap; 0: no intervals.
        length_edges: the metrics are taken by the source's length too, in bins that end there.
    """
    outputs = [one.text for one in decoded]
    references = [one.example.references for one in decoded]
    lengths = [] if length_edges is None else source_lengths(model, decoded, length_unit)
    statistics = tuple(take_statistics(metric, outputs, references) for metric in metrics)
    measurements = tuple(
        Measurement(
            metric=taken.metric,
            value=round(taken.value, 4),
            interval=confidence_interval(taken, num_resamples),
            num_resamples=num_resamples,
            protocol=f"{data_name}; {taken.rule}; {describe_search(options)}, at most {options.max_length} tokens",
            num_examples=len(decoded),
            decoding={
                "beam_size": options.beam_size,
                "length_penalty": options.length_penalty,
                "max_length": options.max_length,
            }
            | ({"patience": options.patience} if has_patience(options) else {}),
            length_unit=None if length_edges is None else length_unit,
            by_length=()
            if length_edges is None
            else by_length(taken, lengths, length_edges, num_resamples=num_resamples),
        )
        for taken in statistics
    )
    return Evaluation(options=options, statistics=statistics, measurements=measurements)


def describe_search(options: DecodingOptions) -> str:
    if options.beam_size == 1:
        return "greedy"
    patience = f", patience {options.patience:g}" if has_patience(options) else ""
    return f"beam {options.beam_size}, length penalty {options.length_penalty:g}{patience}"


def has_patience(options: DecodingOptions) -> bool:
    """Whether the options set a patience that is not the decoder's default."""
    return options.beam_size > 1 and options.patience != DecodingOptions(max_length=1).patience
