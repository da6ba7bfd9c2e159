"""Plain values to the API's messages and back: the only file, except the stubs' caller, that uses protobuf."""

import uuid
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from attendant_client.errors import InvalidArgument, Violation, of_source
from attendant_client.trace import (
    Fate,
    FinishReason,
    SearchEnd,
    Trace,
    TracedCandidate,
    TracedEnd,
    TracedHypothesis,
    TracedSearch,
    TracedStep,
)
from attendant_client.types import (
    DecodingFields,
    Evaluation,
    GenerateOptions,
    Generation,
    Hypothesis,
    Limits,
    ModelInfo,
    OutputFields,
    Sampling,
    Score,
    Source,
    Timings,
    check_names,
)
from attendant_client.v1 import seq2seq_pb2 as pb


def set_fields(message: Message) -> dict[str, Any]:
    """Returns the set fields of a message by name: tokens as a sequence, a message as a dict in turn."""
    return {field.name: _plain_value(value) for field, value in message.ListFields()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, pb.Tokens):
        return value.tokens
    return set_fields(value) if isinstance(value, Message) else value


_Filled = TypeVar("_Filled", bound=Message)
_Plain = TypeVar("_Plain")

MAX_REQUEST_BYTES = 256 * 1024
MAX_LIST = 256
LONGER_LISTS = "; generate_many takes any number of sources"

MAX_SHOWN_CHARACTERS = 64

_FINISH_REASONS = {getattr(pb, f"FINISH_REASON_{reason.name}"): reason for reason in FinishReason}
_FATES = {getattr(pb, f"FATE_{fate.name}"): fate for fate in Fate}
_SEARCH_ENDS = {getattr(pb, f"SEARCH_END_{end.name}"): end for end in SearchEnd}


def generate_request(source: Source, request_id: str, options: Mapping[str, Any]) -> pb.GenerateRequest:
    """Makes a message. Raises TypeError or ValueError, naming the option, for an invalid value; InvalidArgument."""
    check_names(options, GenerateOptions)
    request = fill(pb.GenerateRequest(), _side("", source, "source"))
    fill(request, {"request_id": request_id, "model": options.get("model"), "version": options.get("version")})
    fill(request.decoding, {name: _field(name, options.get(name)) for name in DecodingFields.__annotations__})
    fill(request.output, {name: options.get(name) for name in OutputFields.__annotations__})
    return sized(request)


def checked_source(source: Any) -> Source | InvalidArgument:
    """Returns a source that can be sent, or an error: neither text nor tokens, not UTF-8, or too long."""
    try:
        checked: Source = source if isinstance(source, str) else tuple(_tokens(source, "source").tokens)
        sized(fill(pb.GenerateRequest(), _side("", checked, "source")))
    except InvalidArgument as error:
        return error
    except (TypeError, ValueError) as error:
        field = "text" if isinstance(source, str) else "tokens"
        return InvalidArgument(grpc.StatusCode.INVALID_ARGUMENT, str(error), (Violation(field, str(error)),))
    return checked


def checked_sources(
    sources: Iterable[Any], *, return_errors: bool, first_place: int = 0
) -> list[Source | InvalidArgument]:
    """Returns the sources of a list as `checked_source` does.

    Args:
        first_place: place of the first one.

    Raises:
        TypeError, ValueError, InvalidArgument: unless `return_errors`, an item is no source, or too long; the message
            has its place.
    """
    refuse_frame("source", sources)
    checked = []
    for place, source in enumerate(sources, first_place):
        checked.append(checked_source(source))
        if isinstance(error := checked[-1], InvalidArgument) and not return_errors:
            if not error.violations:  # too long
                raise of_source(place, error)
            raise (ValueError if isinstance(source, str) else TypeError)(f"source {place}: {error.message}")
    return checked


def refuse_frame(name: str, value: object) -> None:
    """Raises TypeError if sources are a data frame: it would be iterated over by its columns."""
    if hasattr(value, "columns"):
        raise TypeError(f"{name} is a data frame: give the texts of a column, such as frame['text'].tolist()")


def _side(prefix: str, value: Any, name: str) -> dict[str, Any]:
    """Returns the field of a text, or of tokens, by its name; errors have the argument's name."""
    return {f"{prefix}text": value} if isinstance(value, str) else {f"{prefix}tokens": _tokens(value, name)}


def many_request(sources: Sequence[Source], request_id: str, options: Mapping[str, Any]) -> pb.GenerateManyRequest:
    """Makes a message of several requests. If it fails as a whole, its first request's id identifies it."""
    if len(sources) > MAX_LIST:
        message = f"the list has {len(sources)} sources, may have {MAX_LIST}{LONGER_LISTS}"
        raise InvalidArgument(grpc.StatusCode.INVALID_ARGUMENT, message)
    request = pb.GenerateManyRequest(requests=[generate_request(source, request_id, options) for source in sources])
    request.requests[0].request_id = request_id or uuid.uuid4().hex
    return sized(request, LONGER_LISTS)


def score_request(source: Source, target: Source, *, attention: bool, **fields: Any) -> pb.ScoreRequest:
    """Makes a message. Raises TypeError or ValueError, naming the field, for an invalid value; InvalidArgument."""
    request = fill(pb.ScoreRequest(), fields)
    fill(request, _side("source_", source, "source"))
    fill(request, _side("target_", target, "target"))
    fill(request.output, {"attention": attention, "token_log_probs": True})
    return sized(request)


def sized(request: _Filled, remedy: str = "") -> _Filled:
    """Returns the request. Raises InvalidArgument if it is too large: a server would refuse it as if overloaded."""
    if request.ByteSize() > MAX_REQUEST_BYTES:
        message = f"the request has {request.ByteSize():,} bytes, must have at most {MAX_REQUEST_BYTES:,}{remedy}"
        raise InvalidArgument(grpc.StatusCode.INVALID_ARGUMENT, message)
    return request


def generation_of(response: pb.GenerateResponse) -> Generation:
    return _plain(
        Generation,
        response,
        hypotheses=tuple(_hypothesis(hypothesis) for hypothesis in response.hypotheses),
        timings=timings_of(response.timings),
        trace=trace_of(response.trace) if response.HasField("trace") else None,
    )


def trace_of(trace: pb.Trace | Mapping[str, Any]) -> Trace:
    """Returns a trace as a plain value, from its message or the fields of that."""
    if not isinstance(trace, pb.Trace):
        trace = pb.Trace(**trace)
    return Trace(searches=tuple(_search(search) for search in trace.searches))


def _search(search: pb.TracedSearch) -> TracedSearch:
    return TracedSearch(
        steps=tuple(_step(step) for step in search.steps),
        ended=tuple(
            _plain(
                TracedEnd,
                end,
                finish_reason=_FINISH_REASONS.get(end.finish_reason, FinishReason.UNSPECIFIED),
                hypothesis=end.hypothesis if end.HasField("hypothesis") else None,
            )
            for end in search.ended
        ),
        reason=_SEARCH_ENDS.get(search.reason, SearchEnd.UNSPECIFIED),
    )


def _step(step: pb.TracedStep) -> TracedStep:
    return TracedStep(
        live=tuple(
            _plain(
                TracedHypothesis,
                hypothesis,
                candidates=tuple(
                    # Without `_plain`, which takes twice as long: a trace may have tens of thousands of candidates.
                    TracedCandidate(
                        token=each.token,
                        log_prob=each.log_prob,
                        total=each.total,
                        fate=_FATES.get(each.fate, Fate.UNSPECIFIED),
                    )
                    for each in hypothesis.candidates
                ),
            )
            for hypothesis in step.live
        ),
        attention=_attention(step),
        bound=step.bound if step.HasField("bound") else None,
        best_possible=step.best_possible if step.HasField("best_possible") else None,
    )


def timings_of(stats: Any) -> Timings:
    """Returns the timings of an object with the attributes of the API's Timings."""
    return Timings(
        queue_seconds=stats.queue,
        encode_seconds=stats.encode,
        decode_seconds=stats.decode,
        total_seconds=stats.total,
        steps=stats.steps,
        mean_batch_rows=stats.mean_batch_rows,
    )


def score_of(response: pb.ScoreResponse) -> Score:
    return _plain(Score, response, attention=_attention(response))


def model_info_of(model: pb.Model) -> ModelInfo:
    return _plain(
        ModelInfo,
        model,
        architecture=dict(model.architecture),
        role=pb.Role.Name(model.role).removeprefix("ROLE_") if model.role in pb.Role.values() else "UNSPECIFIED",
        limits=_plain(Limits, model.limits),
        defaults=_decoding_defaults(model.defaults),
        evaluation=tuple(_plain(Evaluation, evaluation) for evaluation in model.evaluation),
        examples=tuple((example.source, example.target) for example in model.examples),
    )


def _field(name: str, value: Any) -> Any:
    """Returns an option's value as the message has it."""
    value = plain_number(value)
    if name == "sampling" and value is not None:
        if not isinstance(value, Sampling):
            raise TypeError(f"sampling={shown(value)}: must be a Sampling, such as Sampling(temperature=0.8)")
        return fill(pb.SamplingOptions(), asdict(value))
    if name == "target_prefix" and value is not None:
        return _tokens(value, name, "a list of tokens; a text belongs into target_prefix_text")
    if name == "masked_source_positions" and value is not None:
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise TypeError(f"{name}={shown(value)}: must be a list of places")
        return tuple(map(plain_number, value))
    return value


def _tokens(tokens: Sequence[str], name: str, must_be: str = "a text or its tokens") -> pb.Tokens:
    if isinstance(tokens, bytes | bytearray):
        raise TypeError(f"{name}: is bytes, must be {must_be}; decode it first")
    refuse_frame(name, tokens)
    if not isinstance(tokens, Iterable) or isinstance(tokens, str | Mapping | Set):
        raise TypeError(f"{name}={shown(tokens)}: must be {must_be}")
    several = tuple(tokens)
    try:
        return pb.Tokens(tokens=several)
    except (TypeError, ValueError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"{name}={shown(several)}: each token must be {_VALUES[FieldDescriptor.CPPTYPE_STRING]}") from None


_VALUES = {
    FieldDescriptor.CPPTYPE_UINT32: f"a whole number from 0 to {2**32 - 1}",
    FieldDescriptor.CPPTYPE_UINT64: f"a whole number from 0 to {2**64 - 1}",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "True or False",
    FieldDescriptor.CPPTYPE_STRING: "a text without half a surrogate pair",
}
"""The values that a field of each type may have."""


def fill(message: _Filled, values: Mapping[str, Any]) -> _Filled:
    """Sets the fields that have a value. Raises TypeError or ValueError that names the field and its values."""
    for name, raw_value in values.items():
        value = plain_number(raw_value)
        try:
            if isinstance(value, Message):
                getattr(message, name).CopyFrom(value)
            elif isinstance(value, tuple):
                getattr(message, name).extend(value)
            elif value is not None:
                setattr(message, name, value)
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            kind = ValueError if isinstance(error, OverflowError | ValueError) else TypeError
            field = message.DESCRIPTOR.fields_by_name[name]
            most = "a list of places, each " if field.is_repeated else ""
            raise kind(f"{name}={shown(value)}: must be {most}{_VALUES[field.cpp_type]}") from None
    return message


def plain_number(value: Any) -> Any:
    """Returns a scalar of numpy, or of a library like it, as a number of Python; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def shown(value: object) -> str:
    """Returns a value for an error message: one line, shortened if it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[: MAX_SHOWN_CHARACTERS - 3]}..."


def _plain(kind: type[_Plain], message: Message, **converted: Any) -> _Plain:
    """Makes a plain value of the message's fields of the same names, and of already converted ones."""
    for name in kind.__annotations__.keys() - converted.keys():
        value = getattr(message, name)
        converted[name] = value if isinstance(value, str | int | float) else tuple(value)
    return kind(**converted)


def _hypothesis(hypothesis: pb.Hypothesis) -> Hypothesis:
    return _plain(
        Hypothesis,
        hypothesis,
        attention=_attention(hypothesis),
        finish_reason=_FINISH_REASONS.get(hypothesis.finish_reason, FinishReason.UNSPECIFIED),
        confidence=hypothesis.confidence if hypothesis.HasField("confidence") else None,
    )


def _attention(message: pb.Hypothesis | pb.ScoreResponse | pb.TracedStep) -> tuple[tuple[float, ...], ...] | None:
    if not message.HasField("attention"):
        return None
    weights, columns = message.attention.weights, message.attention.columns
    return tuple(tuple(weights[row * columns : (row + 1) * columns]) for row in range(message.attention.rows))


def _decoding_defaults(decoding: pb.DecodingOptions) -> GenerateOptions:
    """Returns the options that the bundle sets."""
    others = {"target_prefix", "sampling", "masked_source_positions"}
    plain = (name for name in DecodingFields.__annotations__ if name not in others)
    return cast(GenerateOptions, {name: getattr(decoding, name) for name in plain if decoding.HasField(name)})
