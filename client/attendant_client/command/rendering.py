"""Renders answers as text, for people and for `cut`, and as JSON for programs; errors as a line and an exit status."""

import json
import math
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.cells import cell_len, set_cell_size

from attendant_client import errors
from attendant_client.alignment import as_text, links
from attendant_client.attention_map import UNICODE_SHADES, cut, draw
from attendant_client.trace import Fate, FinishReason, Place, SearchEnd, Trace, TracedSearch, percent, score_and_rank
from attendant_client.types import EOS, Generation, ModelInfo, Score

MAX_TOKEN = 24
UNICODE_GLYPHS = {"branch": "├ ", "side": "│ ", "last": "└ ", "ended": "■ "}
ASCII_GLYPHS = {"branch": "+ ", "side": "| ", "last": "` ", "ended": "* "}

CUTS = {
    Fate.RANK: "too low",
    Fate.PREFIX: "not the prefix",
    Fate.NOT_DRAWN: "not drawn",
    Fate.ALTERNATIVE: "of another alternative",
    Fate.LENGTH: "too long",
    Fate.SEARCH_ENDED: "the search ended",
    Fate.UNSPECIFIED: "cut",
}
REASONS = {
    SearchEnd.EOS: "every hypothesis ended",
    SearchEnd.BOUND: "no live hypothesis can enter the best",
    SearchEnd.PATIENCE: "enough hypotheses ended (patience)",
    SearchEnd.LENGTH: "the hypotheses had max_length tokens",
    SearchEnd.BANS: "the bans left no token",
    SearchEnd.UNSPECIFIED: "for a reason that this version of the command does not know",
}


def draw_trace(trace: Trace, *, width: int | None = None, ascii_only: bool = False) -> str:
    """Returns the trees of a trace, several lines.

    Args:
        width: columns of the terminal, at which lines are cut. If None, no limit.
        ascii_only: draw with ASCII characters; the tokens stay as they are.
    """
    glyphs = ASCII_GLYPHS if ascii_only else UNICODE_GLYPHS
    lines: list[str] = []
    for number, search in enumerate(trace.searches, 1):
        of = f"search {number} of {len(trace.searches)}: " if len(trace.searches) > 1 else ""
        lines += ["", f"{of}{len(search.steps)} steps, then {_why(search)}", *_Tree(search, glyphs).branch((0, 0))]
    return "\n".join(line if width is None else _narrow(line, width) for line in lines[1:])


def _why(search: TracedSearch) -> str:
    last = search.steps[-1]
    numbers = ""
    if search.reason is SearchEnd.BOUND and last.best_possible is not None and last.bound is not None:
        numbers = f": it can reach {last.best_possible:.3f}, the last of the best has {last.bound:.3f}"
    return REASONS[search.reason] + numbers


def _narrow(line: str, width: int) -> str:
    return line if cell_len(line) <= width else f"{set_cell_size(line, max(1, width - 1))}~"


class _Tree:
    def __init__(self, search: TracedSearch, glyphs: dict[str, str]) -> None:
        self._search = search
        self._glyphs = glyphs
        self._children = search.children()
        self._ends = search.ends()
        # The number of steps of each live hypothesis's longest branch.
        self._heights: dict[Place, int] = {}
        for step, place in reversed(self._children):
            below = (self._heights[step + 1, child] for child in self._children[step, place])
            self._heights[step, place] = 1 + max(below, default=0)

    def branch(self, at: Place) -> list[str]:
        """Returns the lines of the tree from a live hypothesis on."""
        lines: list[str] = []
        while True:
            step, place = at
            if step:
                hypothesis = self._search.steps[step].live[place]
                lines.append(f"{cut(hypothesis.token, MAX_TOKEN)} {percent(hypothesis.log_prob)}")
            # The first of equally long ones has the highest total.
            children = [(step + 1, child) for child in self._children[at]]
            longest = max(children, key=self._heights.__getitem__, default=None)
            branches = [self.branch(child) for child in children if child != longest] + self._leaves(at)
            for number, (first, *more) in enumerate(branches, 1):
                is_last = longest is None and number == len(branches)
                lines.append(self._glyphs["last" if is_last else "branch"] + first)
                lines += [("  " if is_last else self._glyphs["side"]) + line for line in more]
            if longest is None:
                return lines
            at = longest

    def _leaves(self, at: Place) -> list[list[str]]:
        """Returns a line for each way in which a live hypothesis ended, and for each reason why candidates were cut."""
        live = self._search.steps[at[0]].live[at[1]]
        leaves = []
        for end in self._ends.get(at, ()):
            ended = [each for each in live.candidates if each.fate is Fate.ENDED]
            by_eos = end.finish_reason is FinishReason.EOS and ended
            symbol = f"{EOS} {percent(ended[0].log_prob)}" if by_eos else "cut"
            leaves.append([f"{self._glyphs['ended']}{symbol}, {score_and_rank(end)}"])
        for fate, why in CUTS.items():
            if tokens := [each for each in live.candidates if each.fate is fate]:
                shown = ", ".join(f"{cut(each.token, MAX_TOKEN)} {percent(each.log_prob)}" for each in tokens)
                leaves.append([f"{why}: {shown}"])
        if live.banned:
            leaves.append([f"banned: {', '.join(cut(token, MAX_TOKEN) for token in live.banned)}"])
        return leaves


# Errors that the next line of a bulk run would have, too.
_OF_EVERY_LINE = (errors.NotFound, errors.Unauthenticated, errors.Unavailable, errors.Unimplemented)

# Violations that may be of a single line, as field and description: the source, and limits that depend on the source.
_OF_ONE_LINE = re.compile(
    r"(text|tokens)\b.*|output\.trace .*"
    r"|decoding\.(min_length|min_length_ratio|target_prefix\.tokens|masked_source_positions) .*"
    r"|decoding\.target_prefix_text .* long|decoding\.protect_spans .* stand-in.*"
    r"|output\.attention .* so long a text in parts",
    re.DOTALL,
)

_OTHER_TARGET = "is a server running there? name another with --target or ATTENDANT_TARGET"
_TLS_REMEDY = (
    "--tls and --insecure choose encryption, --root-certificates and --server-name the trusted servers, "
    "--client-certificate and --client-key identify the client"
)


def status_of(error: errors.AttendantError) -> int:
    """Returns the exit status: 2 for the user's mistake, 1 if the server did not answer."""
    return 2 if isinstance(error, errors.InvalidArgument | errors.NotFound) else 1


def concerns_every_line(error: errors.AttendantError) -> bool:
    """Returns whether the cause is the options, the model or the server instead of the line."""
    if isinstance(error, errors.InvalidArgument) and error.violations:
        return not any(_OF_ONE_LINE.fullmatch(f"{each.field} {each.description}") for each in error.violations)
    return isinstance(error, _OF_EVERY_LINE)


def explain(error: errors.AttendantError, options: Namespace) -> str:
    """Returns one line: the error, and its remedy if it is known.

    Unprintable characters of a server's message are escaped, as in JSON: any server may have sent it.
    """
    return printable(_explanation(error, options))


def printable(text: str) -> str:
    """Escapes unprintable characters, such as escape sequences of terminals, as in JSON."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _explanation(error: errors.AttendantError, options: Namespace) -> str:
    if isinstance(error, errors.Unavailable):
        remedy = _TLS_REMEDY if isinstance(error, errors.TlsFailed) else _OTHER_TARGET
        return f"{options.target} is unavailable ({error.message}); {remedy}"
    if isinstance(error, errors.DeadlineExceeded):
        return f"no answer from {options.target} within {options.timeout:g} s; --timeout gives it more time"
    if isinstance(error, errors.Unimplemented):
        return f"the server at {options.target} does not offer this: {error.message}"
    if isinstance(error, errors.Unauthenticated):
        return f"{error.message}; --token-file or ATTENDANT_TOKEN has the token that is sent"
    if isinstance(error, errors.Overloaded) and error.retry_seconds is not None:
        return f"{error.message}; try again in {error.retry_seconds:.1f} s"
    names_request = isinstance(error, errors.ServerError) and error.request_id
    return f"{error.message} ({error.request_id})" if names_request else error.message


NO_ATTENTION = "(this model has no attention)"


def generation_as_text(
    answer: Generation | errors.AttendantError | None,
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


def generation_as_json(number: int, source: str | None, answer: Generation | errors.AttendantError | None) -> str:
    """Returns JSON with the same keys always; `error` is null with an answer, the others are empty without one."""
    fields: dict[str, Any] = dict.fromkeys(("request_id", "model", "version"), "")
    fields |= {"hypotheses": [], "source_tokens": [], "timings": None, "warnings": [], "trace": None}
    if isinstance(answer, Generation):
        fields = asdict(answer)
    error = _error(answer) if isinstance(answer, errors.AttendantError) else None
    return _json({"number": number, "source": source, **fields, "error": error})


def score_as_text(score: Score, options: Namespace) -> str:
    """Returns the log-probability and perplexity, then a line per summand: token and log-probability."""
    tokens = (*score.target_tokens, EOS)[: len(score.token_log_probs)]
    summands = [f"{token}\t{log_prob:.4f}" for token, log_prob in zip(tokens, score.token_log_probs, strict=True)]
    per_word = "" if options.tokens else f", {score.word_perplexity(options.target_text):.4g} per word"
    whole = f"{score.log_prob:.4f}\tperplexity {score.perplexity:.4g} per token{per_word}"
    return "\n".join([whole, *summands, *_attention(score, options)])


def score_as_json(score: Score) -> str:
    # JSON has no infinity.
    return _json({**asdict(score), "perplexity": score.perplexity if math.isfinite(score.perplexity) else None})


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


def _error(error: errors.AttendantError) -> dict[str, Any]:
    violations = error.violations if isinstance(error, errors.InvalidArgument) else ()
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
    # The stream would escape characters that its encoding lacks in Python's way, which JSON does not have. Answers of a
    # bundle in this process contain arrays.
    escapes = not _can_be_written("\U0010ffff")
    return json.dumps(fields, ensure_ascii=escapes, default=lambda array: array.tolist())
