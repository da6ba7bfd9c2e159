"""Decodes a test set and measures the outputs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Final, get_args

import numpy as np
from pydantic import Field, field_validator

from attendant.runtime.bundle.manifest import GNMT_OFFSET, SpecialIds
from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.decoding.batch import decode_all, score_all
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.options import DecodingOptions, scoring_options
from attendant.runtime.stepper import Floats, Stepper
from attendant.training.data.pairs import Example, num_words, num_words_and_end
from attendant.training.data.tokenization import encode_source
from attendant.training.evaluation.bootstrap import (
    DEFAULT_RESAMPLES,
    Interval,
    LengthBin,
    LengthUnit,
    by_length,
    confidence_interval,
)
from attendant.training.evaluation.metrics import (
    DEFAULT_BLEU_TOKENIZER,
    BleuTokenizer,
    Floats64,
    MetricName,
    PerplexityName,
    Statistics,
    perplexity,
    take_statistics,
)
from attendant.training.table import Count, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    """What an evaluation decodes with: a stepper between its two tokenizers, whatever it came from.

    Attributes:
        append_eos: the encoder reads EOS at the end of every source.
        max_length: target tokens after which an output is cut where nobody says otherwise.
    """

    stepper: Stepper
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    special_ids: SpecialIds
    append_eos: bool
    max_length: int

    def source_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text as the encoder reads them, EOS included where it is appended."""
        return encode_source(self.source_tokenizer, texts, append_eos=self.append_eos)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """An example and the best output for it.

    A source that the tokenizer leaves nothing of has no `source_ids` and an empty output of log-probability 0.

    Attributes:
        source_ids: as the encoder reads them, EOS included where it is appended.
        text: the target tokenizer's decoding of `token_ids`, which are without EOS.
        log_prob: natural-log probability of the output, EOS included where it ended there.
        score: what hypotheses are ranked by: log_prob over the penalties.
        finish_reason: None where nothing was decoded.
        attention: [number of output tokens and EOS, len(source_ids)] where the options asked for it.
    """

    example: Example
    source_ids: tuple[int, ...] = ()
    text: str = ""
    token_ids: tuple[int, ...] = ()
    log_prob: float = 0.0
    score: float = 0.0
    finish_reason: FinishReason | None = None
    attention: Floats | None = None


def decode_examples(
    model: TextModel,
    examples: Sequence[Example],
    options: DecodingOptions,
    *,
    rescorer: TextModel | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Decoded]:
    """Returns the best output of every example, in the order given, beside references as the target tokenizer has them.

    They are decoded longest first, many at a time, by the very batch that serves.

    Args:
        options: of the search; with `attention`, every output keeps its weights: ask for it on chosen examples only.
        rescorer: another model with the same tokenizers, by whose probabilities the hypotheses of each beam are ranked.
        progress: called with the number of examples that have just finished.
    """
    # No tokenizer writes the white space that it does not read.
    spaced = model.target_tokenizer.spaced
    examples = [Example(one.source, tuple(map(spaced, one.references))) for one in examples]
    sources = model.source_ids([example.source for example in examples])
    decodable = [index for index, source in enumerate(sources) if len(source) > model.append_eos]
    if rescorer is not None:
        options = replace(options, num_hypotheses=options.beam_size)
    given = [sources[index] for index in decodable]
    found = decode_all(model.stepper, given, options, model.special_ids, progress=progress)
    if rescorer is not None:
        found = _rescored(rescorer, given, found, options)
    decoded = [Decoded(example=example) for example in examples]
    for index, (best, *_) in zip(decodable, found, strict=True):
        decoded[index] = Decoded(
            example=examples[index],
            source_ids=tuple(sources[index]),
            text=model.target_tokenizer.decode(best.token_ids),
            token_ids=best.token_ids,
            log_prob=best.log_prob,
            score=best.score,
            finish_reason=best.finish_reason,
            attention=best.attention,
        )
    return decoded


def _rescored(
    rescorer: TextModel,
    sources: Sequence[Sequence[int]],
    found: Sequence[tuple[Hypothesis, ...]],
    options: DecodingOptions,
) -> list[tuple[Hypothesis, ...]]:
    """The n-best lists in the order of the rescorer's log P(y | x) over the length penalty."""
    pairs = [(source, one) for source, hypotheses in zip(sources, found, strict=True) for one in hypotheses]
    eos = rescorer.special_ids.eos
    scored = decode_all(
        rescorer.stepper,
        [source for source, _ in pairs],
        [scoring_options(one.token_ids, eos, include_eos=one.finish_reason is FinishReason.EOS) for _, one in pairs],
        rescorer.special_ids,
    )
    each = iter(zip((one for _, one in pairs), scored, strict=True))
    return [
        tuple(sorted((_with_probabilities(*next(each), options) for _ in hypotheses), key=lambda one: -one.score))
        for hypotheses in found
    ]


def _with_probabilities(found: Hypothesis, scored: tuple[Hypothesis, ...], options: DecodingOptions) -> Hypothesis:
    """A hypothesis with the probabilities and the score that another model, `scored`, gives it."""
    log_probs, log_prob = scored[0].token_log_probs, scored[0].log_prob
    score = log_prob / options.penalty(len(log_probs))
    return found._replace(token_log_probs=log_probs, log_prob=log_prob, score=score)


COUNTED: Final[dict[PerplexityName, str]] = {"perplexity": "token", "word_perplexity": "word"}


@dataclass(frozen=True, slots=True)
class ScoredReferences:
    """What a model says of the references of N examples, each summed over them.

    Attributes:
        log_probs: [N].
        counts: by metric, [N] tokens or words, ends included.
    """

    log_probs: Floats64
    counts: dict[PerplexityName, Floats64]


def score_references(model: TextModel, decoded: Sequence[Decoded]) -> ScoredReferences:
    """Scores every reference of the N examples that `model` has decoded, whose sources are tokenized already."""
    texts = [
        (place, reference)
        for place, one in enumerate(decoded)
        if one.source_ids
        for reference in one.example.references
    ]
    targets = model.target_tokenizer.encode_batch([reference for _, reference in texts])
    pairs = [(decoded[place].source_ids, target) for (place, _), target in zip(texts, targets, strict=True)]
    rows = np.zeros((3, len(decoded)))
    for (place, reference), found in zip(texts, score_all(model.stepper, pairs, model.special_ids), strict=True):
        rows[:, place] += found.log_prob, len(found.token_log_probs), num_words_and_end(reference)
    return ScoredReferences(rows[0], {"perplexity": rows[1], "word_perplexity": rows[2]})


def perplexity_statistics(metric: PerplexityName, scored: ScoredReferences) -> Statistics:
    """The metric taken apart, as `take_statistics` takes those of texts."""
    return Statistics(
        metric=metric,
        rule=f"exp of the mean negative log-probability per {COUNTED[metric]} of all references, their ends counted",
        rows=np.stack([scored.log_probs, scored.counts[metric]], 1),
        value_of=lambda totals: perplexity(*totals.tolist()),
    )


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


def source_lengths(model: TextModel, decoded: Sequence[Decoded], unit: LengthUnit = "words") -> list[int]:
    """The length of each example's source."""
    if unit == "words":
        return [num_words(one.example.source) for one in decoded]
    return [max(0, len(one.source_ids) - model.append_eos) for one in decoded]


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
