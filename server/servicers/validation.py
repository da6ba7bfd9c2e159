"""Requests to plain values. Every violation of a request is found and told together; nothing is clipped."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attendant_client.v1 import seq2seq_pb2 as pb

from runtime.decoding.beam import BeamSearch
from runtime.decoding.forced import ForcedSearch
from runtime.decoding.options import DecodingOptions
from runtime.decoding.search import Search
from runtime.tokenizer import Tokenizer, UnknownTokenError
from server.errors import InvalidArgument, Violation
from server.model import ServedModel

MAX_LENGTH_PENALTY = 10.0
MAX_PATIENCE = 100.0
MAX_SHOWN = 40


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """What the engine needs of a request.

    Attributes:
        source_ids: as the encoder takes them.
        num_source_tokens: without the EOS that the model may want.
        max_rows: rows that the search may come to have.
    """

    source_ids: tuple[int, ...]
    num_source_tokens: int
    search: Search
    max_rows: int


class _Fields:
    """Collects violations while a request is read."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def refuse(self, field: str, description: str) -> None:
        self.violations.append(Violation(field, description))

    def whole(self, message: pb.DecodingOptions, name: str, default: int, low: int, high: int, why: str = "") -> int:
        if not message.HasField(name):
            return default
        value: int = getattr(message, name)
        if not low <= value <= high:
            self.refuse(f"decoding.{name}", f"must be {low} to {high}{why}, got {value}")
        return value

    def real(self, message: pb.DecodingOptions, name: str, default: float, low: float, high: float) -> float:
        if not message.HasField(name):
            return default
        value: float = getattr(message, name)
        # Written so that NaN fails.
        if not (low <= value <= high and math.isfinite(value)):
            self.refuse(f"decoding.{name}", f"must be {low:g} to {high:g}, got {value:g}")
        return value

    def finish(self) -> None:
        if self.violations:
            raise InvalidArgument(*self.violations)


def parse_generate(request: pb.GenerateRequest, model: ServedModel) -> ParsedRequest:
    """Raises InvalidArgument with every field that can't be served."""
    fields = _Fields()
    text = request.text if request.WhichOneof("source") == "text" else None
    tokens = request.tokens.tokens if request.WhichOneof("source") == "tokens" else None
    source = _symbols(fields, "text", text, "tokens", tokens, model.bundle.source_tokenizer)
    _check_source(fields, "text" if text is not None else "tokens", source, model)
    options = _decoding(fields, request.decoding, request.output.attention, model)
    if request.output.replace_unknowns:
        fields.refuse("output.replace_unknowns", NOT_BUILT)
    fields.finish()
    search = BeamSearch.start(options, model.bundle.manifest.special_ids)
    return ParsedRequest(tuple(model.bundle.source_ids(source)), len(source), search, options.beam_size)


def parse_score(request: pb.ScoreRequest, model: ServedModel) -> ParsedRequest:
    """Raises InvalidArgument with every field that can't be served."""
    fields = _Fields()
    bundle, which = model.bundle, request.WhichOneof("source")
    text = request.source_text if which == "source_text" else None
    tokens = request.source_tokens.tokens if which == "source_tokens" else None
    source = _symbols(fields, "source_text", text, "source_tokens", tokens, bundle.source_tokenizer)
    _check_source(fields, which or "source_text", source, model)
    which = request.WhichOneof("target")
    text = request.target_text if which == "target_text" else None
    tokens = request.target_tokens.tokens if which == "target_tokens" else None
    target = _symbols(fields, "target_text", text, "target_tokens", tokens, bundle.target_tokenizer)
    include_eos = request.include_eos if request.HasField("include_eos") else True
    field = which or "target_text"
    if len(target) > model.limits.max_target_tokens:
        limit = model.limits.max_target_tokens
        fields.refuse(field, f"has {len(target)} tokens, at most {limit} are served (max_target_tokens)")
    if not target and not include_eos and not fields.violations:
        fields.refuse(field, "is empty and include_eos is false: nothing is left to score")
    if request.output.replace_unknowns:
        fields.refuse("output.replace_unknowns", "has no meaning where the target is given; leave it out")
    fields.finish()
    search = ForcedSearch.start(
        tuple(target), bundle.manifest.special_ids, include_eos=include_eos, attention=request.output.attention
    )
    return ParsedRequest(tuple(bundle.source_ids(source)), len(source), search, 1)


NOT_BUILT = "is not available in this version of the server; leave it out"

# An option that is not built may still be set to the value that changes nothing.
_NEUTRAL: dict[str, Callable[[pb.DecodingOptions], bool]] = {
    "coverage_penalty": lambda decoding: decoding.coverage_penalty == 0,
    "no_repeat_ngram_size": lambda decoding: decoding.no_repeat_ngram_size == 0,
    "repetition_penalty": lambda decoding: decoding.repetition_penalty == 1,
    "target_prefix": lambda decoding: not decoding.target_prefix.tokens,
    "sampling": lambda decoding: False,
}


def _decoding(fields: _Fields, decoding: pb.DecodingOptions, attention: bool, model: ServedModel) -> DecodingOptions:
    defaults, limits = model.bundle.manifest.decoding, model.limits
    for name, is_neutral in _NEUTRAL.items():
        if decoding.HasField(name) and not is_neutral(decoding):
            fields.refuse(f"decoding.{name}", NOT_BUILT)
    default_beam = min(defaults.beam_size, limits.max_beam_size)
    beam_size = fields.whole(decoding, "beam_size", default_beam, 1, limits.max_beam_size)
    num_hypotheses = fields.whole(
        decoding,
        "num_hypotheses",
        min(defaults.num_hypotheses, max(beam_size, 1)),
        1,
        min(limits.max_num_hypotheses, max(beam_size, 1)),
        f" (beam_size is {beam_size})",
    )
    default_length = defaults.max_length or limits.max_target_tokens
    max_length = fields.whole(decoding, "max_length", default_length, 1, limits.max_target_tokens)
    min_length = fields.whole(decoding, "min_length", 0, 0, max_length, " (max_length)")
    penalty = fields.real(decoding, "length_penalty", defaults.length_penalty, 0.0, MAX_LENGTH_PENALTY)
    patience = fields.real(decoding, "patience", 1.0, 0.0, MAX_PATIENCE)
    if decoding.HasField("patience") and patience == 0:
        fields.refuse("decoding.patience", "must be more than 0, got 0")
    return DecodingOptions(
        beam_size=beam_size,
        num_hypotheses=num_hypotheses,
        length_penalty=penalty,
        min_length=min_length,
        max_length=max_length,
        patience=patience,
        suppress_unk=decoding.suppress_unk,
        attention=attention,
    )


def _symbols(
    fields: _Fields,
    text_field: str,
    text: str | None,
    tokens_field: str,
    tokens: Sequence[str] | None,
    tokenizer: Tokenizer,
) -> list[int]:
    """The ids of one side, given in one of two ways; a violation, and nothing, where it is given in none."""
    if text is not None:
        return tokenizer.encode(text)
    if tokens is None:
        fields.refuse(text_field, f"is missing; give {text_field} or {tokens_field}")
        return []
    try:
        return tokenizer.ids_of(tokens)
    except UnknownTokenError as error:
        shown = error.token if len(error.token) <= MAX_SHOWN else error.token[:MAX_SHOWN] + "..."
        fields.refuse(f"{tokens_field}.tokens[{error.position}]", f"{shown!r} is not in the vocabulary")
        return []


def _check_source(fields: _Fields, field: str, source: Sequence[int], model: ServedModel) -> None:
    if fields.violations:
        return
    limit = model.limits.max_source_tokens
    if not source:
        fields.refuse(field, "is empty; give at least one token")
    elif len(source) > limit:
        fields.refuse(field, f"has {len(source)} tokens, at most {limit} are served (max_source_tokens)")
