"""Renders answers as text, for people and for `cut`, and as JSON for programs; errors as a line and an exit status."""

import json
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from attendant_client.alignment import as_text, links
from attendant_client.answers import EOS, Generation, ModelInfo, Score
from attendant_client.attention_map import UNICODE_SHADES, draw
from attendant_client.command.tree import UNICODE_GLYPHS
from attendant_client.command.tree import draw as draw_trace
from attendant_client.errors import (
    AttendantError,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Overloaded,
    ServerError,
    TlsFailed,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from attendant_client.target import proxy_of

# Errors that the next line of a bulk run would have, too.
_OF_EVERY_LINE = (NotFound, Unauthenticated, Unavailable, Unimplemented)

# Fields that may be wrong for a single line: the source, and lengths, whose limit may depend on the source.
_OF_ONE_LINE = re.compile(
    r"(text|tokens)\b.*|output\.trace"
    r"|decoding\.(min_length|min_length_ratio|target_prefix\.tokens|masked_source_positions)"
)

_OTHER_TARGET = "is a server running there? name another with --target or ATTENDANT_TARGET"
_TLS_REMEDY = (
    "--tls and --insecure choose encryption, --root-certificates and --server-name the trusted servers, "
    "--client-certificate and --client-key identify the client"
)


def status_of(error: AttendantError) -> int:
    """Returns the exit status: 2 for the user's mistake, 1 if the server did not answer."""
    return 2 if isinstance(error, InvalidArgument | NotFound) else 1


def concerns_every_line(error: AttendantError) -> bool:
    """Returns whether the cause is the options, the model or the server instead of the line."""
    if isinstance(error, InvalidArgument) and error.violations:
        return not any(_OF_ONE_LINE.fullmatch(violation.field) for violation in error.violations)
    return isinstance(error, _OF_EVERY_LINE)


def explain(error: AttendantError, options: Namespace) -> str:
    """Returns one line: the error, and its remedy if it is known.

    Servers may be strangers: unprintable characters of their messages are escaped, as in JSON.
    """
    return printable(_explanation(error, options))


def printable(text: str) -> str:
    """Escapes unprintable characters, such as escape sequences of terminals, as in JSON."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _explanation(error: AttendantError, options: Namespace) -> str:
    if isinstance(error, Unavailable):
        remedy = _TLS_REMEDY if isinstance(error, TlsFailed) else _OTHER_TARGET
        return f"{options.target} is unavailable ({error.message}); {remedy}"
    if isinstance(error, DeadlineExceeded):
        proxy = proxy_of(options.target)
        through = "" if proxy is None else f"; {proxy}"
        return f"no answer from {options.target} within {options.timeout:g} s; --timeout gives it more time{through}"
    if isinstance(error, Unimplemented):
        return f"the server at {options.target} does not offer this: {error.message}"
    if isinstance(error, Unauthenticated):
        return f"{error.message}; --token-file or ATTENDANT_TOKEN has the token that is sent"
    if isinstance(error, Overloaded) and error.retry_seconds is not None:
        return f"{error.message}; try again in {error.retry_seconds:.1f} s"
    names_request = isinstance(error, ServerError) and error.request_id
    return f"{error.message} ({error.request_id})" if names_request else error.message


NO_ATTENTION = "(this model has no attention)"


def generation_as_text(
    answer: Generation | AttendantError | None,
    options: Namespace,
    source: str | None = None,
    *,
    keeps_lines: bool = False,
) -> str:
    """Returns the text; or for several hypotheses a line each: rank, score, text, separated by tabs. Empty without an
    answer. With --links, a text's links follow it; with --attention and --trace, drawings follow all.

    Args:
        source: shown before the rank; None if it is the only one.
        keeps_lines: leave the text's line ends; otherwise it becomes one line.
    """
    if not isinstance(answer, Generation):
        return ""
    texts = [each.text if keeps_lines else as_one_line(each.text) for each in answer.hypotheses]
    if options.links:
        texts = [f"{text}\t{_links(answer, place)}" for place, text in enumerate(texts)]
    if len(texts) > 1:
        scores = (hypothesis.score for hypothesis in answer.hypotheses)
        whose = "" if source is None else as_one_line(source).replace("\t", " ") + "\t"
        texts = [
            f"{whose}{rank}\t{score:.4f}\t{text}"
            for rank, (score, text) in enumerate(zip(scores, texts, strict=True), 1)
        ]
    return "\n".join([*texts, *_attention(answer, options), *_trace(answer, options)])


def generation_as_json(number: int, source: str | None, answer: Generation | AttendantError | None) -> str:
    """Returns JSON with the same keys always; `error` is null with an answer, the others are empty without one."""
    fields: dict[str, Any] = dict.fromkeys(("request_id", "model", "version"), "")
    fields |= {"hypotheses": [], "source_tokens": [], "timings": None, "warnings": [], "trace": None}
    if isinstance(answer, Generation):
        fields = asdict(answer)
    error = _error(answer) if isinstance(answer, AttendantError) else None
    return _json({"number": number, "source": source, **fields, "error": error})


def score_as_text(score: Score, options: Namespace) -> str:
    """Returns the log-probability and perplexity, then a line per summand: token and log-probability."""
    tokens = (*score.target_tokens, EOS)[: len(score.token_log_probs)]
    summands = [f"{token}\t{log_prob:.4f}" for token, log_prob in zip(tokens, score.token_log_probs, strict=True)]
    per_word = "" if options.tokens else f", {score.word_perplexity(options.target_text):.4g} per word"
    whole = f"{score.log_prob:.4f}\tperplexity {score.perplexity:.4g} per token{per_word}"
    return "\n".join([whole, *summands, *_attention(score, options)])


def score_as_json(score: Score) -> str:
    return _json({**asdict(score), "perplexity": score.perplexity})


def model_as_text(model: ModelInfo) -> str:
    """Returns a few lines for people."""
    limits = ", ".join(f"{name} {value}" for name, value in asdict(model.limits).items())
    # A version in a repository has a label and a role.
    label = f" ({model.label}, {model.role.lower()})" if model.label not in ("", model.version) else ""
    lines = [
        f"{model.name}  version {model.version}{label}, {model.precision} on {model.provider}",
        *([f"  {model.description}"] if model.description else []),
        *(f"  example       {source} -> {target}" for source, target in model.examples),
        f"  vocabularies  source {model.source_vocabulary_size}, target {model.target_vocabulary_size}",
        f"  architecture  {', '.join(f'{name} {value}' for name, value in sorted(model.architecture.items()))}",
        f"  limits        {limits}",
        f"  defaults      {', '.join(f'{name} {_short(value)}' for name, value in model.defaults.items())}",
    ]
    lines += [
        f"  measured      {e.metric} {e.value:g} on {e.num_examples} examples ({e.protocol})" for e in model.evaluation
    ]
    return "\n".join(map(printable, lines))


def model_as_json(model: ModelInfo) -> str:
    fields = asdict(model)
    fields["manifest"] = json.loads(fields.pop("manifest_json") or "null")
    return _json(fields)


def _links(answer: Generation, hypothesis: int) -> str:
    if answer.hypotheses[hypothesis].attention is None:
        return NO_ATTENTION
    return as_text(links(answer, hypothesis=hypothesis))


def _attention(answer: Generation | Score, options: Namespace) -> list[str]:
    if not options.attention:
        return []
    weights = answer.hypotheses[0].attention if isinstance(answer, Generation) else answer.attention
    if weights is None:
        return [NO_ATTENTION]
    return ["", draw(answer, width=_width(), ascii_only=not _can_be_written(UNICODE_SHADES)), ""]


def _trace(answer: Generation, options: Namespace) -> list[str]:
    if answer.trace is None:
        return ["(this server sends no traces)"] if options.trace else []
    glyphs = UNICODE_GLYPHS.values()
    return ["", draw_trace(answer.trace, width=_width(), ascii_only=not _can_be_written(glyphs)), ""]


def _width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _can_be_written(characters: Iterable[str]) -> bool:
    try:
        "".join(characters).encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return False
    return True


def _error(error: AttendantError) -> dict[str, Any]:
    violations = error.violations if isinstance(error, InvalidArgument) else ()
    return {"code": error.code.name, "message": error.message, "violations": [asdict(v) for v in violations]}


def has_lines(text: str) -> bool:
    """Returns whether a text has several lines; so may its answer then."""
    return len(text.splitlines()) > 1


def as_one_line(text: str) -> str:
    """Replaces line ends, so that an answer is one line."""
    return "".join(" " if c.splitlines() == [""] else c for c in text)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _json(fields: dict[str, Any]) -> str:
    # Answers of a bundle in this process contain arrays.
    return json.dumps(fields, ensure_ascii=False, default=lambda array: array.tolist())
