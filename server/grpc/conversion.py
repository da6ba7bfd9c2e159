"""Messages made of plain values: answers, models, and the statuses of errors."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any, TypeVar

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from attendant.runtime.answers import answer_fields, score_fields
from attendant.runtime.bundle.manifest import TEXT_OPTIONS
from attendant.runtime.decoding.hypothesis import FinishReason
from attendant.runtime.decoding.options import default_max_length
from attendant.runtime.stepper import Floats
from attendant.runtime.violations import cut
from attendant.server.catalogue.models import Role, ServedModel
from attendant.server.engine.request import Result
from attendant.server.errors import AttendantError, InvalidArgument, Overloaded
from attendant.server.grpc.requests import ParsedRequest, off_the_loop
from attendant_client.v1 import seq2seq_pb2 as messages

FINISH_REASONS = {
    FinishReason.EOS: messages.FINISH_REASON_EOS,
    FinishReason.LENGTH: messages.FINISH_REASON_LENGTH,
}
ROLES: dict[Role, messages.Role] = {
    "stable": messages.ROLE_STABLE,
    "canary": messages.ROLE_CANARY,
    "shadow": messages.ROLE_SHADOW,
    "named": messages.ROLE_NAMED,
}
TIMINGS = tuple(messages.Timings.DESCRIPTOR.fields_by_name)
"""The names of the fields, which RequestStats has too."""
timings_of = attrgetter(*TIMINGS)


LOOP_CELLS = 20_000
"""A larger answer is made on a thread: this many tokens and weights take a few milliseconds."""

CANDIDATE_CELLS = 8
"""Cost of a trace's candidate, in cells."""

MAX_DETAILS_BYTES, MAX_DETAIL_CHARACTERS = 3072, 160
"""Limits of a status's violations. It travels in trailing metadata, of which gRPC's clients accept some 8 KiB."""

WRITERS = ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers")

T = TypeVar("T")


def num_cells(result: Result) -> int:
    """Returns the number of an answer's tokens and attention weights; a trace's candidates count several times."""
    of_trace = sum(
        CANDIDATE_CELLS * len(search.fates) + (0 if search.attention is None else search.attention.size)
        for search in result.trace or ()
    )
    return of_trace + sum(
        len(hypothesis.token_ids) + (0 if hypothesis.attention is None else hypothesis.attention.size)
        for hypothesis in result.hypotheses
    )


async def written(num_cells: int, make: Callable[[], T]) -> T:
    """Calls `make`, on a thread if the answer is large, so that it does not hold the event loop."""
    return await off_the_loop(num_cells, make, LOOP_CELLS, WRITERS)


def generate_fields(parsed: ParsedRequest, result: Result) -> dict[str, Any]:
    """Returns a GenerateResponse's fields.

    Not the message: protobuf would serialize and parse it once more to put it into the message that contains it.
    """
    model = parsed.model
    fields = answer_fields(result.hypotheses, result.trace, parsed.content, model)
    for hypothesis in fields["hypotheses"]:
        hypothesis["attention"] = _attention(hypothesis["attention"])
        hypothesis["finish_reason"] = FINISH_REASONS[hypothesis["finish_reason"]]
    return {
        "request_id": parsed.request_id,
        "model": model.name,
        "version": model.manifest.version,
        "timings": dict(zip(TIMINGS, timings_of(result.stats), strict=True)),
        **fields,
    }


def score_response(parsed: ParsedRequest, result: Result) -> messages.ScoreResponse:
    model = parsed.model
    fields = score_fields(result.hypotheses[0], parsed.content, model)
    fields["attention"] = _attention(fields["attention"])
    return messages.ScoreResponse(
        request_id=parsed.request_id, model=model.name, version=model.manifest.version, **fields
    )


def model_message(model: ServedModel, role: Role) -> messages.Model:
    manifest, limits = model.manifest, model.limits
    return messages.Model(
        name=model.name,
        version=manifest.version,
        precision=model.precision,
        provider=model.provider,
        architecture=dict(_flattened(manifest.model)),
        source_vocabulary_size=manifest.source.vocabulary_size,
        target_vocabulary_size=manifest.target.vocabulary_size,
        limits=messages.Limits(
            **limits.model_dump(),
            max_source_characters=model.bundle.source_tokenizer.max_characters(limits.max_source_tokens),
            max_target_characters=model.bundle.target_tokenizer.max_characters(limits.max_target_tokens),
        ),
        defaults=messages.DecodingOptions(
            **manifest.decoding.model_dump(exclude={"max_length", "max_length_ratio", *TEXT_OPTIONS}),
            **{name: getattr(manifest.decoding, name) for name in TEXT_OPTIONS},
            min_length=0,
            # That of the longest source, if it depends on the source.
            max_length=default_max_length(manifest, limits.max_source_tokens),
            suppress_unk=False,
        ),
        evaluation=[
            messages.EvaluationResult(**evaluation.model_dump(exclude={"precision", "difference"}))
            for evaluation in manifest.evaluation
            # Measurements of other graphs say nothing certain about these.
            if evaluation.precision == model.precision
        ],
        manifest_json=manifest.to_text(),
        label=model.label,
        role=ROLES[role],
        description=model.bundle.description,
        examples=[messages.Example(source=source, target=target) for source, target in model.bundle.examples()],
    )


def _attention(attention: Floats | None) -> messages.Attention | None:
    """Makes a message of weights [summands, source tokens]; None leaves the field unset."""
    if attention is None:
        return None
    rows, columns = attention.shape
    return messages.Attention(rows=rows, columns=columns, weights=attention.ravel().tolist())


def _flattened(section: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Returns nested fields by their dotted names, except those that are None."""
    pairs: list[tuple[str, str]] = []
    for name, value in section.items():
        if isinstance(value, dict):
            pairs += _flattened(value, f"{prefix}{name}.")
        elif value is not None:
            pairs.append((prefix + name, str(value).lower() if isinstance(value, bool) else str(value)))
    return pairs


def status_of(error: AttendantError, request_id: str) -> status_pb2.Status:
    """Returns the status of an error with its details: BadRequest, RetryInfo for an overload, and RequestInfo.

    Args:
        request_id: under which the log names the request.
    """
    status = status_pb2.Status(code=grpc.StatusCode[error.code].value[0], message=str(error))
    details: list[Message] = []
    if isinstance(error, InvalidArgument):
        request = error_details_pb2.BadRequest()
        for violation in error.violations:
            shown = cut(violation.field, MAX_DETAIL_CHARACTERS), cut(violation.description, MAX_DETAIL_CHARACTERS)
            if request.ByteSize() + sum(len(text.encode()) for text in shown) > MAX_DETAILS_BYTES:
                break
            request.field_violations.add(field=shown[0], description=shown[1])
        details.append(request)
    elif isinstance(error, Overloaded):
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(error.retry_seconds * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    details.append(error_details_pb2.RequestInfo(request_id=request_id))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status
