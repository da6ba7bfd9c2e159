"""Requests as work for an engine, or everything that is wrong with them, told together."""

from dataclasses import dataclass
from functools import lru_cache

from attendant.runtime.bundle.tokenizer import UNK_ID
from attendant.runtime.decoding.beam import BeamSearch
from attendant.runtime.decoding.forced import ForcedSearch
from attendant.runtime.decoding.search import Search
from attendant.server.errors import Violation
from attendant.server.models import ServedModel
from attendant.server.servicers.decoding import read_decoding
from attendant.server.servicers.symbols import read_text, read_tokens
from attendant.server.servicers.violations import NOT_BUILT, Violations, check_request_id
from attendant_client.v1 import seq2seq_pb2 as messages

MAX_SEARCHES_KEPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a request asks of its model.

    Attributes:
        source_ids: as the encoder takes them, with EOS at the end where the bundle wants it.
        num_source_tokens, num_unknown_tokens: of the source, EOS not counted; and how many of them are UNK.
        max_rows: rows that the search may come to have.
    """

    source_ids: tuple[int, ...]
    num_source_tokens: int
    num_unknown_tokens: int
    search: Search
    max_rows: int


def read_generate(request: messages.GenerateRequest, model: ServedModel) -> Work:
    """Checks a request against its model's limits.

    Raises:
        InvalidArgument: with every violation.
    """
    violations = Violations()
    check_request_id(request.request_id, violations)
    tokenizer, most = model.bundle.source_tokenizer, model.limits.max_source_tokens
    match request.WhichOneof("source"):
        case "text":
            source_ids = read_text(request.text, "text", tokenizer, 1, most, violations)
        case "tokens":
            source_ids = read_tokens(request.tokens.tokens, "tokens.tokens", tokenizer, 1, most, violations)
        case _:
            source_ids = []
            violations.say("source", "unset", "text or tokens")
    search = _search_of(request, model, violations)
    _check_output(request.output, model, violations)
    violations.raise_if_any()
    return _work(source_ids, search, search.options.beam_size, model)


def _search_of(request: messages.GenerateRequest, model: ServedModel, violations: Violations) -> BeamSearch:
    search, found = _parsed(request.decoding.SerializeToString(), request.output.attention, model)
    violations.found += found
    return search


@lru_cache(maxsize=MAX_SEARCHES_KEPT)
def _parsed(decoding: bytes, attention: bool, model: ServedModel) -> tuple[BeamSearch, tuple[Violation, ...]]:
    """The search that options ask for, and what is wrong with them. Kept, for most requests have the same ones."""
    violations = Violations()
    given, manifest = messages.DecodingOptions.FromString(decoding), model.manifest
    options = read_decoding(given, attention=attention, manifest=manifest, limits=model.limits, violations=violations)
    return BeamSearch.start(options, manifest.special_ids), tuple(violations.found)


def read_score(request: messages.ScoreRequest, model: ServedModel) -> Work:
    """Checks a request against its model's limits.

    Raises:
        InvalidArgument: with every violation.
    """
    violations = Violations()
    check_request_id(request.request_id, violations)
    bundle, limits = model.bundle, model.limits
    tokenizer, most = bundle.source_tokenizer, limits.max_source_tokens
    match request.WhichOneof("source"):
        case "source_text":
            source_ids = read_text(request.source_text, "source_text", tokenizer, 1, most, violations)
        case "source_tokens":
            given, field = request.source_tokens.tokens, "source_tokens.tokens"
            source_ids = read_tokens(given, field, tokenizer, 1, most, violations)
        case _:
            source_ids = []
            violations.say("source", "unset", "source_text or source_tokens")
    include_eos = request.include_eos if request.HasField("include_eos") else True
    # The end alone has a probability too.
    least, tokenizer, most = int(not include_eos), bundle.target_tokenizer, limits.max_target_tokens
    match request.WhichOneof("target"):
        case "target_text":
            target_ids = read_text(request.target_text, "target_text", tokenizer, least, most, violations)
        case "target_tokens":
            given, field = request.target_tokens.tokens, "target_tokens.tokens"
            target_ids = read_tokens(given, field, tokenizer, least, most, violations)
        case _:
            target_ids = []
            violations.say("target", "unset", "target_text or target_tokens")
    _check_output(request.output, model, violations)
    violations.raise_if_any()
    search = ForcedSearch.start(
        tuple(target_ids), model.manifest.special_ids, include_eos=include_eos, attention=request.output.attention
    )
    return _work(source_ids, search, 1, model)


def _work(token_ids: list[int], search: Search, max_rows: int, model: ServedModel) -> Work:
    return Work(
        source_ids=tuple(model.bundle.source_ids(token_ids)),
        num_source_tokens=len(token_ids),
        num_unknown_tokens=token_ids.count(UNK_ID),
        search=search,
        max_rows=max_rows,
    )


def _check_output(output: messages.OutputOptions, model: ServedModel, violations: Violations) -> None:
    if output.attention and not model.has_attention:
        violations.add("output.attention", True, "false: this model has no attention")
    if output.replace_unknowns:
        violations.add("output.replace_unknowns", True, f"false: {NOT_BUILT}")
