"""Requests as work for an engine, or everything that is wrong with them, told together."""

from dataclasses import dataclass

from attendant.runtime.decoding.beam import BeamSearch
from attendant.runtime.decoding.forced import ForcedSearch
from attendant.runtime.decoding.search import Search
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
        source_ids: without the EOS that the bundle may append.
        max_rows: rows that the search may come to have.
    """

    source_ids: tuple[int, ...]
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
    return Work(source_ids=tuple(source_ids), search=search, max_rows=search.options.beam_size)


def _search_of(request: messages.GenerateRequest, model: ServedModel, violations: Violations) -> BeamSearch:
    """The search that a request's options ask for, as it begins. It is a value, so requests may share it."""
    asked = request.decoding.SerializeToString(), request.output.attention
    search = model.searches.get(asked)
    if search is None:
        found = Violations()
        options = read_decoding(
            request.decoding,
            attention=request.output.attention,
            manifest=model.manifest,
            limits=model.limits,
            violations=found,
        )
        search = BeamSearch.start(options, model.manifest.special_ids)
        violations.found += found.found
        if not found.found:
            if len(model.searches) >= MAX_SEARCHES_KEPT:
                model.searches.clear()
            model.searches[asked] = search
    return search


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
    return Work(source_ids=tuple(source_ids), search=search, max_rows=1)


def _check_output(output: messages.OutputOptions, model: ServedModel, violations: Violations) -> None:
    if output.attention and not model.has_attention:
        violations.add("output.attention", True, "false: this model has no attention")
    if output.replace_unknowns:
        violations.add("output.replace_unknowns", True, f"false: {NOT_BUILT}")
