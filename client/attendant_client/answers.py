"""The server's answers as plain frozen values, and as HTML in notebooks. Log-probabilities are natural logarithms."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Any, TypeVar

from attendant_client.options import GenerateOptions

COLOR = "31, 119, 180"
CELL = "width: 1.4em; height: 1.4em; padding: 0; border: 1px solid rgba(128, 128, 128, .25);"
HEADING = "writing-mode: vertical-rl; transform: rotate(180deg); padding: .3em 0; font-weight: normal;"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts."""
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(one)}</td>' for one in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def paragraphs(texts: Sequence[str]) -> str:
    """Returns a paragraph for each text."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def attention_table(weights: Sequence[Sequence[float]], columns: Sequence[str], rows: Sequence[str]) -> str:
    """Attention as a table: a row per target token, a column per source token, the darker the more attention."""
    head = "".join(f'<th style="{HEADING}">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th style="font-weight: normal;">{escape(label)}</th>'
        + "".join(
            f'<td style="{CELL} background: rgba({COLOR}, {weight:.2f});" '
            f'title="{escape(label)} &larr; {escape(column)}: {weight:.2f}"></td>'
            for column, weight in zip(columns, row, strict=True)
        )
        + "</tr>"
        for label, row in zip(rows, weights, strict=True)
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"


# What stands for a target's end where its tokens are shown.
EOS = "</s>"

# A text, which the server tokenizes, or the tokens themselves.
Source = str | Sequence[str]


class FinishReason(StrEnum):
    """Why a hypothesis ended."""

    EOS = "EOS"  # the model said so
    LENGTH = "LENGTH"  # it was cut: at max_length, or where bans left no token
    UNSPECIFIED = "UNSPECIFIED"  # a reason that this version of the client does not know


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
        tokens: without EOS. With `replace_unknowns`, source tokens stand where UNK stood.
        score: what hypotheses are ranked by: `log_prob` with the penalties.
        log_prob: of the tokens, and of EOS where the hypothesis ended there.
        token_log_probs: the summands of `log_prob` in order, EOS last; empty unless asked for.
        attention: a row per summand of `log_prob`, a column per source token; None unless asked for.
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    log_prob: float
    token_log_probs: tuple[float, ...]
    attention: tuple[tuple[float, ...], ...] | None
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the server's time went.

    Attributes:
        queue_seconds: from submission to admission: the wait for rows.
        encode_seconds: in the encoder, with the requests encoded beside this one.
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
        version: which weights answered.
        hypotheses: best first; at least one. Each has `token_log_probs` and `attention` only if asked for.
        source_tokens: what the source was split into, in the order of attention's columns.
        warnings: why the answer may be worth little.
    """

    request_id: str
    model: str
    version: str
    hypotheses: tuple[Hypothesis, ...]
    source_tokens: tuple[str, ...]
    timings: Timings
    warnings: tuple[str, ...] = ()

    @property
    def best(self) -> Hypothesis:
        return self.hypotheses[0]

    def _repr_html_(self) -> str:
        """In notebooks: the hypotheses, and where the best one looked, if that was asked for."""
        rows = [(str(rank), f"{one.score:.4f}", one.text) for rank, one in enumerate(self.hypotheses, 1)]
        shown = table(("", "score", "text"), rows) + paragraphs(self.warnings)
        return shown + _attention_html(self.best.attention, self.source_tokens, self.best.tokens)


_Item = TypeVar("_Item")


class Answers(list[_Item]):
    """A list of answers, and of errors in the places of others; notebooks show it as a table."""

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
    """What has become certain of an answer that is still decoded: tokens of the best hypothesis, and their text.

    Attributes:
        text: what the tokens add to the text; of all deltas together it is the answer's.
    """

    tokens: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The answer to `score`: how probable the model finds a given target.

    Attributes:
        log_prob: log P(target | source), the sum of `token_log_probs`.
        token_log_probs: one per target token, and EOS's last where it counts.
        attention: a row per summand of `log_prob`, a column per source token; None unless asked for.
        warnings: why the score may say little.
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
        """Per token: exp(-log_prob / number of summands)."""
        return math.exp(-self.log_prob / len(self.token_log_probs))

    def word_perplexity(self, target: str) -> float:
        """Per word of the target's text: what white space separates, and the end where it counts."""
        counts_end = len(self.token_log_probs) > len(self.target_tokens)
        return math.exp(-self.log_prob / (len(target.split()) + counts_end))

    def _repr_html_(self) -> str:
        """In notebooks: the summands, and where the decoder looked, if that was asked for."""
        summands = zip((*self.target_tokens, EOS), self.token_log_probs, strict=False)
        rows = [("all", f"{self.log_prob:.4f}"), *((token, f"{one:.4f}") for token, one in summands)]
        return table(("token", "log P"), rows) + _attention_html(self.attention, self.source_tokens, self.target_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the server accepts at most.

    Attributes:
        max_source_characters, max_target_characters: of a text; 0: a server of an earlier version, which does not say.
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
    """One model that is served.

    Attributes:
        version: the first 12 hexadecimal digits of the manifest's digest.
        precision: fp32, int8 or fp16.
        provider: cpu or cuda.
        architecture: what the model is: cell, layers, attention, sizes.
        defaults: what unset options take.
        manifest_json: the bundle's whole manifest.
        label: what the server's operator calls this version; empty: a server of an earlier version, which does not say.
        role: what it is served for: STABLE, CANARY, SHADOW or NAMED; UNSPECIFIED where the server does not say.
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


def attention_of(
    answer: Generation | Score, hypothesis: int = 0
) -> tuple[tuple[tuple[float, ...], ...], tuple[str, ...]]:
    """The attention weights of an answer, and the target tokens of their rows; the end's row has none.

    Raises:
        ValueError: there is no attention in the answer.
    """
    if isinstance(answer, Generation):
        chosen = answer.hypotheses[hypothesis]
        weights, tokens = chosen.attention, chosen.tokens
    else:
        weights, tokens = answer.attention, answer.target_tokens
    if weights is None:
        raise ValueError("the answer has no attention weights; ask for them with attention=True")
    return weights, tokens


def _attention_html(
    weights: Sequence[Sequence[float]] | None, source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> str:
    if weights is None:
        return ""
    return attention_table(weights, source_tokens, (*target_tokens, EOS)[: len(weights)])
