"""The API's values in Python: the options of `generate`, and the server's answers, which notebooks show as HTML.

Options are named as in the API. `attendant generate` and its help are made from their meanings and defaults. The server
checks ranges, since it has the models. Log-probabilities are natural logarithms.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Annotated, Any, TypedDict, TypeVar, get_args, get_type_hints

from attendant_client.trace import FinishReason, Trace


@dataclass(frozen=True, slots=True)
class Option:
    """The description of an option.

    Attributes:
        meaning: one line, with the unit.
        default: the server's value if the option is left out; empty if it needs no mention.
        least, most: the range of a whole number in the API's field.
    """

    meaning: str
    default: str = ""
    least: int = 0
    most: int = 2**32 - 1


OF_BUNDLE = "the bundle's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Draw tokens at random instead of searching for the most probable ones."""

    temperature: Annotated[
        float | None, Option("divide the logits: below 1 favours probable tokens, above 1 improbable ones", "1")
    ] = None
    top_k: Annotated[
        int | None, Option("draw among the N most probable tokens only; 0: the 256 most probable ones", "0")
    ] = None
    top_p: Annotated[
        float | None,
        Option("draw among the most probable tokens that together have this probability (Holtzman et al. 2020)", "1"),
    ] = None
    seed: Annotated[
        int | None,
        Option("the same seed and request give the same answer", "random", most=2**64 - 1),
    ] = None


class DecodingFields(TypedDict, total=False):
    """The options of the search."""

    beam_size: Annotated[int, Option("live hypotheses; 1: greedy search", OF_BUNDLE, least=1)]
    num_hypotheses: Annotated[
        int,
        Option(
            "hypotheses to return, best first; at most the beam size, unless they are alternatives or drawn",
            OF_BUNDLE,
            least=1,
        ),
    ]
    alternatives: Annotated[
        bool, Option("return hypotheses that begin differently: the best one for each of the most probable next tokens")
    ]
    min_length: Annotated[int, Option("tokens that a hypothesis must have before it may end", "0")]
    max_length: Annotated[int, Option("tokens after which a hypothesis is cut", OF_BUNDLE, least=1)]
    min_length_ratio: Annotated[
        float, Option("like the minimum length, in target tokens per source token; the stricter one applies", "none")
    ]
    max_length_ratio: Annotated[
        float, Option("like the maximum length, in target tokens per source token; the stricter one applies", "none")
    ]
    length_penalty: Annotated[
        float,
        Option(
            "divide log P by ((K + tokens) / (K + 1)) ^ X, K being the offset: larger values favour longer; 0: off",
            OF_BUNDLE,
        ),
    ]
    length_penalty_offset: Annotated[
        float, Option("K of the length penalty; 5 as in GNMT (Wu et al. 2016); 0: a power of the length", OF_BUNDLE)
    ]
    coverage_penalty: Annotated[
        float, Option("lower the score if source tokens got little attention (Wu et al. 2016); 0: none", "0")
    ]
    repetition_penalty: Annotated[
        float,
        Option("divide the probability of tokens that the hypothesis already has (Keskar et al. 2019); 1: none", "1"),
    ]
    no_repeat_ngram_size: Annotated[int, Option("prevent sequences of N tokens from repeating; 0: off", "0")]
    patience: Annotated[
        float,
        Option(
            "end the search when X times the beam size hypotheses have ended (Kasai et al. 2022); 0: when no live one "
            "can enter the best",
            "the bundle's, mostly 0",
        ),
    ]
    suppress_unk: Annotated[bool, Option("never generate UNK")]
    target_prefix: Annotated[Sequence[str], Option("every hypothesis begins with these tokens")]
    target_prefix_text: Annotated[
        str,
        Option("every hypothesis begins with this text, which may end within a word; a space at its end ends the word"),
    ]
    protect_spans: Annotated[
        bool, Option("return placeholders, tags, addresses, paths and emoji of the text as written", OF_BUNDLE)
    ]
    split_sentences: Annotated[
        bool, Option("decode each line and sentence of the text separately, and join the answers", OF_BUNDLE)
    ]
    sampling: Annotated[Sampling, Option("draw tokens at random instead of searching for the most probable ones")]
    masked_source_positions: Annotated[
        Sequence[int], Option("positions of the source's tokens, from 0, that attention ignores")
    ]


class OutputFields(TypedDict, total=False):
    """The parts of the answer in addition to the text."""

    attention: Annotated[bool, Option("return the attention weights")]
    token_log_probs: Annotated[bool, Option("return the log-probability of every token")]
    replace_unknowns: Annotated[bool, Option("replace each UNK by the source token that it attends to most")]
    trace: Annotated[
        int, Option("return the course of the search, with the N most probable tokens after each live hypothesis", "0")
    ]


class RequestOptions(DecodingFields, OutputFields, total=False):
    """All options of a request."""

    model: Annotated[str, Option("the model's name", "the only one served")]
    version: Annotated[str, Option("the model's version: its label, or the version in answers", "the server's choice")]


class Deadline(TypedDict, total=False):
    """The keyword that every call takes."""

    # Seconds, including retries; for bulk work, seconds without an answer. If None, there is no deadline. If left out,
    # it is the client's own.
    timeout: float | None


class GenerateOptions(RequestOptions, Deadline, total=False):
    """Everything that `generate` and `generate_many` take by keyword."""


def check_names(options: Iterable[str], fields: type) -> None:
    """Checks the names of options. Raises TypeError, which lists the choices, if `fields`, a TypedDict, lacks one."""
    if unknown := set(options) - fields.__annotations__.keys():
        choices = ", ".join(sorted(fields.__annotations__))
        sampled = sorted(unknown & Sampling.__annotations__.keys())
        if sampled and "sampling" in fields.__annotations__:
            choices = f"sampling=Sampling({sampled[0]}=...), or from {choices}"
        raise TypeError(f"there is no option {', '.join(sorted(unknown))}; choose from {choices}")


def options_of(fields: type) -> dict[str, tuple[Any, Option]]:
    """Returns the type and the description of each option of a TypedDict, by name."""
    hints = get_type_hints(fields, include_extras=True)
    return {name: (kind, option) for name, hint in hints.items() for kind, option in [get_args(hint)]}


COLOR = "31, 119, 180"
CELL = "width: 1.4em; height: 1.4em; padding: 0; border: 1px solid rgba(128, 128, 128, .25);"
HEADING = "writing-mode: vertical-rl; transform: rotate(180deg); padding: .3em 0; font-weight: normal;"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def paragraphs(texts: Sequence[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def _attention_html(
    weights: Sequence[Sequence[float]] | None, columns: Sequence[str], target_tokens: Sequence[str]
) -> str:
    """Returns attention as a table: a row per target token, a column per source token; darker is more."""
    if weights is None:
        return ""
    head = "".join(f'<th style="{HEADING}">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th style="font-weight: normal;">{escape(label)}</th>'
        + "".join(
            f'<td style="{CELL} background: rgba({COLOR}, {weight:.2f});" '
            f'title="{escape(label)} &larr; {escape(column)}: {weight:.2f}"></td>'
            for column, weight in zip(columns, row, strict=True)
        )
        + "</tr>"
        for label, row in zip((*target_tokens, EOS)[: len(weights)], weights, strict=True)
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"


# Shown as the token of a target's end.
EOS = "</s>"

# A text, which the server tokenizes, or the tokens themselves.
Source = str | Sequence[str]


class HealthStatus(StrEnum):
    """As in grpc.health.v1."""

    UNKNOWN = "UNKNOWN"
    SERVING = "SERVING"
    NOT_SERVING = "NOT_SERVING"
    SERVICE_UNKNOWN = "SERVICE_UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One answer.

    Attributes:
        text: the target tokenizer's decoding of `tokens`.
        tokens: without EOS. With `replace_unknowns`, source tokens replace UNK.
        score: `log_prob` with the penalties; hypotheses are ranked by it.
        log_prob: of the tokens, and of EOS if the hypothesis ended there.
        token_log_probs: the summands of `log_prob` in order, EOS last; empty unless requested.
        attention: a row per summand of `log_prob`, a column per source token; None unless requested.
        confidence: the calibrated probability that the answer is right, as the bundle's manifest defines right; None if
            the bundle has no calibration.
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    log_prob: float
    token_log_probs: tuple[float, ...]
    attention: tuple[tuple[float, ...], ...] | None
    finish_reason: FinishReason
    confidence: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The server's time for a request.

    Attributes:
        queue_seconds: from submission to admission: the wait for rows.
        encode_seconds: in the encoder, with the requests encoded together with this one.
        decode_seconds: from the end of encoding to the last step.
        total_seconds: from submission to the answer.
        steps: decoder steps that this request took part in.
        mean_batch_rows: rows that shared those steps, this request's own included.
    """

    queue_seconds: float
    encode_seconds: float
    decode_seconds: float
    total_seconds: float
    steps: int
    mean_batch_rows: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The answer to `generate`.

    Attributes:
        version: of the model.
        hypotheses: best first; at least one. Each has `token_log_probs` and `attention` only if requested.
        source_tokens: the tokens of the source, in the order of attention's columns.
        warnings: reasons why the answer may be poor.
        trace: the course of the search; None unless requested.
    """

    request_id: str
    model: str
    version: str
    hypotheses: tuple[Hypothesis, ...]
    source_tokens: tuple[str, ...]
    timings: Timings
    warnings: tuple[str, ...] = ()
    trace: Trace | None = None

    @property
    def best(self) -> Hypothesis:
        return self.hypotheses[0]

    def _repr_html_(self) -> str:
        """Returns HTML for notebooks: the hypotheses, and the attention of the best one if requested."""
        rows = [(str(rank), f"{each.score:.4f}", each.text) for rank, each in enumerate(self.hypotheses, 1)]
        shown = table(("", "score", "text"), rows) + paragraphs(self.warnings)
        return shown + _attention_html(self.best.attention, self.source_tokens, self.best.tokens)


_Item = TypeVar("_Item")


class Answers(list[_Item]):
    """A list of answers, or errors in their places. Notebooks show it as a table."""

    MAX_ROWS = 100

    def __getitem__(self, place: Any) -> Any:
        item = super().__getitem__(place)
        return Answers(item) if isinstance(place, slice) else item

    def _repr_html_(self) -> str:
        heads = ("", "source", "score", "answer", "warnings")
        rows = [(str(place), *_row(answer)) for place, answer in enumerate(self[: self.MAX_ROWS])]
        more = len(self) - len(rows)
        return table(heads, rows) + paragraphs([f"and {more} more"] if more else [])


def _row(answer: object) -> tuple[str, str, str, str]:
    """Returns the columns of one answer, or of an error, in a table of answers."""
    if isinstance(answer, Generation):
        source, best = " ".join(answer.source_tokens), answer.best
        return source, f"{best.score:.4f}", best.text, "; ".join(answer.warnings)
    if isinstance(answer, Score):
        return " ".join(answer.source_tokens), f"{answer.log_prob:.4f}", " ".join(answer.target_tokens), ""
    return "", "", "", f"{type(answer).__name__}: {answer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New certain tokens of the best hypothesis of an answer that is still decoded.

    Attributes:
        text: the text that the tokens add; joined, all deltas are the answer's text.
    """

    tokens: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The answer to `score`: the probability of a target.

    Attributes:
        log_prob: log P(target | source), the sum of `token_log_probs`.
        token_log_probs: one per target token, and EOS's last if it counts.
        attention: a row per summand of `log_prob`, a column per source token; None unless requested.
        warnings: reasons why the score may mean little.
    """

    request_id: str
    model: str
    version: str
    log_prob: float
    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    token_log_probs: tuple[float, ...]
    attention: tuple[tuple[float, ...], ...] | None
    warnings: tuple[str, ...] = ()

    @property
    def perplexity(self) -> float:
        """The perplexity per token: exp(-log_prob / number of summands)."""
        return _perplexity(self.log_prob, len(self.token_log_probs))

    def word_perplexity(self, target: str) -> float:
        """Returns the perplexity per word of the target's text, separated by white space, and its end if it counts."""
        counts_end = len(self.token_log_probs) > len(self.target_tokens)
        return _perplexity(self.log_prob, len(target.split()) + counts_end)

    def _repr_html_(self) -> str:
        """Returns HTML for notebooks: the summands, and the attention if it was requested."""
        summands = zip((*self.target_tokens, EOS), self.token_log_probs, strict=False)
        rows = [("all", f"{self.log_prob:.4f}"), *((token, f"{log_prob:.4f}") for token, log_prob in summands)]
        return table(("token", "log P"), rows) + _attention_html(self.attention, self.source_tokens, self.target_tokens)


def _perplexity(log_prob: float, count: int) -> float:
    """Returns exp(-log_prob / count), or infinity if that is too large for a float."""
    try:
        return math.exp(-log_prob / count)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The server's limits of a request.

    Attributes:
        max_source_characters, max_target_characters: of a text; 0 from a server of an earlier version.
    """

    max_source_tokens: int
    max_target_tokens: int
    max_beam_size: int
    max_num_hypotheses: int
    max_source_characters: int = 0
    max_target_characters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A measured quality and how it was measured."""

    metric: str
    value: float
    protocol: str
    num_examples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model that is served.

    Attributes:
        version: the first 12 hexadecimal digits of the manifest's digest.
        precision: fp32, int8 or fp16.
        provider: cpu or cuda.
        architecture: cell, layers, attention, sizes.
        defaults: the values of unset options.
        manifest_json: the bundle's whole manifest.
        label: the operator's name of this version; empty from a server of an earlier version.
        role: STABLE, CANARY, SHADOW or NAMED; UNSPECIFIED from a server of an earlier version.
        description: the purpose of the model, in a sentence; may be empty.
        examples: up to three sources, each with the model's answer.
    """

    name: str
    version: str
    precision: str
    provider: str
    architecture: Mapping[str, str]
    source_vocabulary_size: int
    target_vocabulary_size: int
    limits: Limits
    defaults: GenerateOptions
    evaluation: tuple[Evaluation, ...]
    manifest_json: str
    label: str = ""
    role: str = "UNSPECIFIED"
    description: str = ""
    examples: tuple[tuple[str, str], ...] = ()


def attention_of(
    answer: Generation | Score, hypothesis: int = 0
) -> tuple[tuple[tuple[float, ...], ...], tuple[str, ...]]:
    """Returns the attention weights of an answer, and the target tokens of their rows, without the end's.

    Raises:
        ValueError: the answer has no attention.
    """
    if isinstance(answer, Generation):
        chosen = answer.hypotheses[hypothesis]
        weights, tokens = chosen.attention, chosen.tokens
    else:
        weights, tokens = answer.attention, answer.target_tokens
    if weights is None:
        raise ValueError("the answer has no attention weights; ask for them with attention=True")
    return weights, tokens
