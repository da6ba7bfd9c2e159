"""Decodes a test set and measures the outputs."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Annotated, Any, Final, Self

import numpy as np
from pydantic import Field, field_validator

from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import GNMT_OFFSET, SpecialIds
from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID, Tokenizer
from attendant.runtime.decoding.batch import decode_all, score_all
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.options import DecodingOptions, scoring_options
from attendant.runtime.stepper import Floats, Stepper
from attendant.training.data.pairs import Example, num_words, num_words_and_end
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

MAX_COUNT: Final = 1_000_000  # Limit of hypotheses and of target tokens: larger arrays don't fit into memory.


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    """A stepper between its two tokenizers: of a run, an ensemble or a bundle.

    Attributes:
        append_eos: the encoder reads EOS at the end of every source.
        prepend_bos: it reads BOS at the beginning.
        max_length: target tokens after which an output is cut by default.
    """

    stepper: Stepper
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    special_ids: SpecialIds
    append_eos: bool
    max_length: int
    prepend_bos: bool = False

    @classmethod
    def of_bundle(cls, bundle: Bundle, stepper: Stepper, max_length: int) -> Self:
        """Returns a text model around a stepper of a bundle's graphs."""
        manifest = bundle.manifest
        return cls(
            stepper=stepper,
            source_tokenizer=bundle.source_tokenizer,
            target_tokenizer=bundle.target_tokenizer,
            special_ids=manifest.special_ids,
            append_eos=manifest.source.append_eos,
            prepend_bos=manifest.source.prepend_bos,
            max_length=max_length,
        )

    def source_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text as the encoder reads them, with BOS and EOS if it reads them."""
        return list(map(self.encoder_ids, self.source_tokenizer.encode_batch(texts)))

    def encoder_ids(self, token_ids: Sequence[int]) -> list[int]:
        """Returns the encoder's input for a source's tokens."""
        return [*[BOS_ID] * self.prepend_bos, *token_ids, *[EOS_ID] * self.append_eos]

    @property
    def num_special(self) -> int:
        """Symbols of an encoder's source that are not the text's."""
        return self.append_eos + self.prepend_bos


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """An example and the best output for it.

    If the tokenizer leaves nothing of a source, the output is empty, without `source_ids` and of log-probability 0.

    Attributes:
        source_ids: as the encoder reads them, EOS included if it is appended.
        text: the target tokenizer's decoding of `token_ids`, which are without EOS.
        log_prob: natural-log probability of the output, EOS included if it ended there.
        score: log_prob over the penalties, by which hypotheses are ranked.
        finish_reason: None if nothing was decoded.
        attention: [number of output tokens and EOS, len(source_ids)] if the options request it.
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
    """Returns the best output of every example, in order, with references as the target tokenizer spaces them.

    Examples are decoded longest first, many at a time, by the same batch as in the server.

    Args:
        options: options of the search; with `attention`, every output keeps its weights: use it for few examples only.
        rescorer: another model with the same tokenizers, by whose probabilities the hypotheses of each beam are ranked.
        progress: called with the number of examples that have just finished.
    """
    # No tokenizer writes the white space that it does not read.
    spaced = model.target_tokenizer.spaced
    examples = [Example(example.source, tuple(map(spaced, example.references))) for example in examples]
    sources = model.source_ids([example.source for example in examples])
    decodable = [index for index, source in enumerate(sources) if len(source) > model.num_special]
    if rescorer is not None:
        options = replace(options, num_hypotheses=options.beam_size)
    chosen = [sources[index] for index in decodable]
    hypotheses = decode_all(model.stepper, chosen, options, model.special_ids, progress=progress)
    if rescorer is not None:
        hypotheses = _rescored(rescorer, chosen, hypotheses, options)
    decoded = [Decoded(example=example) for example in examples]
    for index, (best, *_) in zip(decodable, hypotheses, strict=True):
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
    n_best: Sequence[tuple[Hypothesis, ...]],
    options: DecodingOptions,
) -> list[tuple[Hypothesis, ...]]:
    """Returns the n-best lists with the rescorer's probabilities, in the order of its log P(y | x) over the penalty."""
    pairs = [(source, hypothesis) for source, group in zip(sources, n_best, strict=True) for hypothesis in group]
    eos = rescorer.special_ids.eos
    scored = decode_all(
        rescorer.stepper,
        [source for source, _ in pairs],
        [
            scoring_options(hypothesis.token_ids, eos, include_eos=hypothesis.finish_reason is FinishReason.EOS)
            for _, hypothesis in pairs
        ],
        rescorer.special_ids,
    )
    rescored = iter(
        hypothesis._replace(
            token_log_probs=forced.token_log_probs,
            log_prob=forced.log_prob,
            score=forced.log_prob / options.penalty(len(forced.token_log_probs)),
        )
        for (_, hypothesis), (forced, *_) in zip(pairs, scored, strict=True)
    )
    return [tuple(sorted(islice(rescored, len(group)), key=lambda hypothesis: -hypothesis.score)) for group in n_best]


def score_references(model: TextModel, decoded: Sequence[Decoded]) -> Floats64:
    """Scores every reference of the N examples that `model` has decoded; sources without a token do not count.

    Returns:
        [3, N] sums over each example's references: log-probability, number of tokens and of words, ends included.
    """
    texts = [
        (place, reference)
        for place, output in enumerate(decoded)
        if output.source_ids
        for reference in output.example.references
    ]
    targets = model.target_tokenizer.encode_batch([reference for _, reference in texts])
    pairs = [(decoded[place].source_ids, target) for (place, _), target in zip(texts, targets, strict=True)]
    rows = np.zeros((3, len(decoded)))
    for (place, reference), scored in zip(texts, score_all(model.stepper, pairs, model.special_ids), strict=True):
        rows[:, place] += scored.log_prob, len(scored.token_log_probs), num_words_and_end(reference)
    return rows


def perplexity_statistics(metric: PerplexityName, scored: Floats64) -> Statistics:
    """Returns a perplexity's statistics, as `take_statistics` those of outputs.

    Args:
        scored: [3, N], the result of `score_references`.
    """
    unit, row = ("token", 1) if metric == "perplexity" else ("word", 2)
    return Statistics(
        metric=metric,
        rule=f"exp of the mean negative log-probability per {unit} of all references, their ends counted",
        rows=np.stack([scored[0], scored[row]], 1),
        value_of=_perplexity_of,
    )


def _perplexity_of(totals: Floats64) -> float:
    return perplexity(*totals.tolist())


class EvaluationConfig(Table):
    """`[evaluation]`: the measurements on the test split after the training.

    Attributes:
        metrics: the metrics to compute.
        bleu_tokenizer: splits texts into words for "bleu". "13a": for languages with spaces; "intl": the same with
            Unicode's punctuation; "zh": each Han character is a word; "char": each character is a word; "ja-mecab" and
            "ko-mecab" need packages, "flores101" and "flores200" a package and a download; "none": white space.
        ignored_characters: characters that are removed from outputs and references before they are compared, e.g. "012"
            for phones without their stress. The probabilities of references do not change.
        beam_size: live hypotheses; 1: greedy.
        length_penalty: log P is divided by ((k + length) / (k + 1)) ^ length_penalty. 0 disables it.
        length_penalty_offset: k. 5 as in GNMT (Wu et al. 2016, eq. 14); with 0 and a penalty of 1, the score is divided
            by the length.
        patience: a beam ends when patience * beam_size hypotheses have ended (Kasai et al. 2022). If None or 0, the
            server's default rule applies.
        max_length: target tokens after which an output is cut. If None, data.max_target_tokens. Raise it to measure the
            model on longer texts than those it was trained on.
        length_edges: also measures every metric by the length of the source, in bins that end at these lengths. If
            None, it does not.
        length_unit: unit of these lengths: words and punctuation marks, or tokens of the model's own tokenizer.
        right_from: lowest chrF or ROUGE, in percent, of a right answer, for the calibration of confidence. If None,
            chrF 60 (also if the first metric is BLEU or TER) or ROUGE 40. With exact matches and other error rates, the
            answer must equal a reference.
    """

    metrics: Annotated[tuple[MetricName, ...], Field(min_length=1)] = ("exact_match", "perplexity", "word_perplexity")
    bleu_tokenizer: BleuTokenizer = DEFAULT_BLEU_TOKENIZER
    ignored_characters: str = ""
    beam_size: Annotated[Count, Field(le=MAX_COUNT)] = 1
    length_penalty: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    length_penalty_offset: Annotated[float, Field(ge=0.0, le=10.0)] = GNMT_OFFSET
    patience: Annotated[float, Field(ge=0.0, le=10.0)] | None = None
    max_length: Annotated[Count, Field(le=MAX_COUNT)] | None = None
    length_edges: Annotated[tuple[Count, ...], Field(min_length=1)] | None = None
    length_unit: LengthUnit = "words"
    right_from: Annotated[float, Field(gt=0.0, le=100.0)] | None = None

    @field_validator("length_edges")
    @classmethod
    def edges_rise(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and list(value) != sorted(set(value)):
            raise ValueError("must be whole numbers that rise")
        return value

    @field_validator("patience")
    @classmethod
    def none_is_zero(cls, value: float | None) -> float | None:
        return value or None

    def measured_as(self, first: Self) -> Self:
        """Returns this configuration with the metrics of another, so that the results can be compared."""
        shared = ("metrics", "bleu_tokenizer", "ignored_characters")
        return self.model_copy(update={name: getattr(first, name) for name in shared})


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number with its protocol.

    Attributes:
        interval: 95 % bootstrap interval; None without resamples.
        protocol: data, rule and decoding, in words.
        length_unit: the unit of `by_length`; None if there are no lengths.
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
    """All measurements of one decoding.

    Attributes:
        statistics: statistics of each metric, in the order of `measurements`, for comparisons.
    """

    options: DecodingOptions
    statistics: tuple[Statistics, ...] = field(compare=False, repr=False)
    measurements: tuple[Measurement, ...]

    @property
    def num_examples(self) -> int:
        return self.measurements[0].num_examples


def source_lengths(model: TextModel, decoded: Sequence[Decoded], unit: LengthUnit) -> list[int]:
    if unit == "words":
        return [num_words(output.example.source) for output in decoded]
    return [max(0, len(output.source_ids) - model.num_special) for output in decoded]


def search_options(config: EvaluationConfig, model: TextModel) -> DecodingOptions:
    """Returns the options of the search that `config` describes; by default, outputs are cut at the model's limit."""
    return DecodingOptions(
        max_length=config.max_length or model.max_length,
        beam_size=config.beam_size,
        length_penalty=config.length_penalty,
        length_penalty_offset=config.length_penalty_offset,
        # Greedy search ends at its first EOS either way.
        patience=config.patience if config.beam_size > 1 else None,
    )


def describe_search(options: DecodingOptions) -> str:
    if options.beam_size == 1:
        return "greedy"
    words = [f"beam {options.beam_size}", f"length penalty {options.length_penalty:g}"]
    words += [f"{name.replace('length_penalty_', '')} {value:g}" for name, value in _unusual(options).items()]
    return ", ".join(words)


def _unusual(options: DecodingOptions) -> dict[str, float]:
    """Returns the options that are named only if they differ from the defaults."""
    unusual = {}
    if options.length_penalty and options.length_penalty_offset != GNMT_OFFSET:
        unusual["length_penalty_offset"] = options.length_penalty_offset
    if options.patience is not None:
        unusual["patience"] = options.patience
    return unusual


def evaluate(
    model: TextModel,
    decoded: Sequence[Decoded],
    config: EvaluationConfig,
    *,
    data_name: str,
    num_resamples: int = DEFAULT_RESAMPLES,
) -> Evaluation:
    """Measures the outputs of `model` by every metric of `config`.

    Args:
        decoded: not empty; the outputs of the search that `config` describes.
        data_name: the data's name in the protocol, e.g. "data/cmudict/test.tsv".
        num_resamples: resamples of the bootstrap. 0 disables intervals.
    """
    options, edges, ignored = search_options(config, model), config.length_edges, config.ignored_characters
    lengths = [] if edges is None else source_lengths(model, decoded, config.length_unit)
    left_out = dict.fromkeys(map(ord, ignored))
    outputs = [output.text.translate(left_out) for output in decoded]
    references = [[text.translate(left_out) for text in output.example.references] for output in decoded]
    search = f"{describe_search(options)}, at most {options.max_length} tokens"
    decoding = {"beam_size": options.beam_size, "length_penalty": options.length_penalty}
    all_statistics, measurements = [], []
    scored: Floats64 | None = None
    for metric in config.metrics:
        match metric:
            case "perplexity" | "word_perplexity":
                scored = score_references(model, decoded) if scored is None else scored
                statistics = perplexity_statistics(metric, scored)
                protocol = [data_name, statistics.rule]
            case _:
                statistics = take_statistics(metric, outputs, references, config.bleu_tokenizer)
                without = [f"without the characters {ignored!r}"] * bool(ignored)
                protocol = [data_name, statistics.rule, *without, search]
        all_statistics.append(statistics)
        measurements.append(
            Measurement(
                metric=metric,
                value=round(statistics.value, 4),
                interval=confidence_interval(statistics, num_resamples),
                num_resamples=num_resamples,
                protocol="; ".join(protocol),
                num_examples=len(decoded),
                decoding=decoding | {"max_length": options.max_length} | _unusual(options),
                length_unit=None if edges is None else config.length_unit,
                by_length=() if edges is None else by_length(statistics, lengths, edges, num_resamples=num_resamples),
            )
        )
    return Evaluation(options=options, statistics=tuple(all_statistics), measurements=tuple(measurements))
