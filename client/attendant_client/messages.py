"""Plain values to the API's messages and back: the only file, besides the stubs' caller, that sees protobuf."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from attendant_client.answers import (
    Evaluation,
    FinishReason,
    Generation,
    Hypothesis,
    Limits,
    ModelInfo,
    Score,
    Source,
    Timings,
)
from attendant_client.options import DecodingFields, GenerateOptions, OutputFields, Sampling, check_names
from attendant_client.v1 import seq2seq_pb2 as pb

_Filled = TypeVar("_Filled", bound=Message)
_Plain = TypeVar("_Plain")

_FINISH_REASONS = {
    pb.FINISH_REASON_EOS: FinishReason.EOS,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}


def generate_request(source: Source, request_id: str, options: Mapping[str, Any]) -> pb.GenerateRequest:
    """Raises TypeError or ValueError, naming the option, where a value can't stand in the message."""
    check_names(options, GenerateOptions)
    request = pb.GenerateRequest()
    _fill(request, {"request_id": request_id, "model": options.get("model")})
    _fill(request, {"text": source} if isinstance(source, str) else {"tokens": _tokens(source)})
    _fill(request.decoding, {name: _field(options.get(name)) for name in DecodingFields.__annotations__})
    _fill(request.output, {name: options.get(name) for name in OutputFields.__annotations__})
    return request


def score_request(
    source: Source, target: Source, *, request_id: str, model: str, include_eos: bool, attention: bool
) -> pb.ScoreRequest:
    """Raises TypeError or ValueError, naming the field, where a value can't stand in the message."""
    request = pb.ScoreRequest()
    _fill(request, {"request_id": request_id, "model": model, "include_eos": include_eos})
    for side, value in (("source", source), ("target", target)):
        _fill(request, {f"{side}_text": value} if isinstance(value, str) else {f"{side}_tokens": _tokens(value)})
    _fill(request.output, {"attention": attention, "token_log_probs": True})
    return request


def generation_of(response: pb.GenerateResponse) -> Generation:
    timings = response.timings
    return _plain(
        Generation,
        response,
        hypotheses=tuple(_hypothesis(hypothesis) for hypothesis in response.hypotheses),
        timings=Timings(
            queue_seconds=timings.queue,
            encode_seconds=timings.encode,
            decode_seconds=timings.decode,
            total_seconds=timings.total,
            steps=timings.steps,
            mean_batch_rows=timings.mean_batch_rows,
        ),
    )


def score_of(response: pb.ScoreResponse) -> Score:
    return _plain(Score, response, attention=_attention(response))


def model_info_of(model: pb.Model) -> ModelInfo:
    return _plain(
        ModelInfo,
        model,
        architecture=dict(model.architecture),
        limits=_plain(Limits, model.limits),
        defaults=_decoding_defaults(model.defaults),
        evaluation=tuple(_plain(Evaluation, evaluation) for evaluation in model.evaluation),
    )


def _field(value: Any) -> Any:
    """An option's value as the message has it."""
    if isinstance(value, Sampling):
        return _fill(pb.SamplingOptions(), asdict(value))
    return value if value is None or isinstance(value, str | int | float) else _tokens(value)


def _tokens(tokens: Sequence[str]) -> pb.Tokens:
    return _fill(pb.Tokens(), {"tokens": tuple(tokens)})


def _fill(message: _Filled, values: Mapping[str, Any]) -> _Filled:
    """Sets the fields that have a value; protobuf's complaints name none, so they are told again with the field's."""
    for name, value in values.items():
        try:
            if isinstance(value, Message):
                getattr(message, name).CopyFrom(value)
            elif isinstance(value, tuple):
                getattr(message, name).extend(value)
            elif value is not None:
                setattr(message, name, value)
        except (AttributeError, TypeError, ValueError) as error:
            # AttributeError: a plain value where a message belongs.
            kind = ValueError if isinstance(error, ValueError) else TypeError
            raise kind(f"{name}={value!r}: {error}") from None
    return message


def _plain(kind: type[_Plain], message: Message, **converted: Any) -> _Plain:
    """A plain value, of the message's fields of the same names and of those that are given converted."""
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
    )


def _attention(message: pb.Hypothesis | pb.ScoreResponse) -> tuple[tuple[float, ...], ...] | None:
    if not message.HasField("attention"):
        return None
    weights, columns = message.attention.weights, message.attention.columns
    return tuple(tuple(weights[row * columns : (row + 1) * columns]) for row in range(message.attention.rows))


def _decoding_defaults(decoding: pb.DecodingOptions) -> GenerateOptions:
    """The options that the bundle sets."""
    plain = (name for name in DecodingFields.__annotations__ if name not in {"target_prefix", "sampling"})
    return cast(GenerateOptions, {name: getattr(decoding, name) for name in plain if decoding.HasField(name)})
