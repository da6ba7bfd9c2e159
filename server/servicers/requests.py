"""Requests as the engine takes them, or everything that is wrong with them, told together."""

from dataclasses import dataclass

from attendant.runtime.decoding.options import DecodingOptions, scoring_options
from attendant.server.models import ServedModel
from attendant.server.servicers.decoding import read_decoding
from attendant.server.servicers.symbols import read_text, read_tokens
from attendant.server.servicers.violations import Violations, check_request_id
from attendant_client.v1 import seq2seq_pb2 as messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """What a request asks of its model.

    Attributes:
        source_ids: as the encoder takes them, the end symbol included where the model wants it.
        num_source_tokens: of the source itself.
    """

    source_ids: tuple[int, ...]
    num_source_tokens: int
    options: DecodingOptions


def read_generate(request: messages.GenerateRequest, model: ServedModel) -> ParsedRequest:
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
    options = read_decoding(request.decoding, request.output, model, len(source_ids), violations)
    _check_output(request.output, model, violations)
    violations.raise_if_any()
    assert options is not None, "options without a violation are there"
    return _parsed(source_ids, options, model)


def read_score(request: messages.ScoreRequest, model: ServedModel) -> ParsedRequest:
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
    if request.output.replace_unknowns:
        violations.add("output.replace_unknowns", True, "false: a target that is scored stands as it is")
    violations.raise_if_any()
    options = scoring_options(
        target_ids, model.manifest.special_ids.eos, include_eos=include_eos, attention=request.output.attention
    )
    return _parsed(source_ids, options, model)


def _parsed(source_ids: list[int], options: DecodingOptions, model: ServedModel) -> ParsedRequest:
    encoded = tuple(model.bundle.source_ids(source_ids))
    return ParsedRequest(source_ids=encoded, num_source_tokens=len(source_ids), options=options)


def _check_output(output: messages.OutputOptions, model: ServedModel, violations: Violations) -> None:
    for name in ("attention", "replace_unknowns"):
        if getattr(output, name) and not model.has_attention:
            violations.add(f"output.{name}", True, "false: this model has no attention")
