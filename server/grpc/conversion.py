"""Plain values as messages."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any, TypeVar

from attendant.runtime.answers import hypothesis_fields, score_fields, source_tokens, warnings_of
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.options import default_max_length
from attendant.runtime.stepper import Floats
from attendant.server.catalogue.models import Role, ServedModel
from attendant.server.engine.request import Outcome, Result
from attendant.server.grpc.requests import ParsedRequest
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
"""The names of its fields, which RequestStats has too."""
timings_of = attrgetter(*TIMINGS)


LOOP_CELLS = 20_000
"""A larger answer is made on a thread of its own: so many tokens and weights take a few milliseconds."""

WRITERS = ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers")

Made = TypeVar("Made")


def num_cells(result: Result) -> int:
    """Returns how many tokens and weights of attention an answer has."""
    return sum(len(one.token_ids) + (0 if one.attention is None else one.attention.size) for one in result.hypotheses)


async def written(num_cells: int, make: Callable[[], Made]) -> Made:
    """Returns what is made of an answer, without holding up the event loop for a large one."""
    if num_cells <= LOOP_CELLS:
        return make()
    return await asyncio.get_running_loop().run_in_executor(WRITERS, make)


async def generate_response(parsed: ParsedRequest, outcome: Outcome) -> messages.GenerateResponse:
    """Returns the answer to a request. Raises the outcome if it is an error."""
    result = parsed.result_of_generate(outcome)
    return await written(num_cells(result), lambda: messages.GenerateResponse(**generate_fields(parsed, result)))


def generate_fields(parsed: ParsedRequest, result: Result) -> dict[str, Any]:
    """A GenerateResponse's fields.

    Not the message: protobuf would serialize and parse it once more to put it into the message that contains it.
    """
    model = parsed.model
    return {
        "request_id": parsed.request_id,
        "model": model.name,
        "version": model.manifest.version,
        "hypotheses": [_hypothesis(one, parsed) for one in result.hypotheses],
        "source_tokens": source_tokens(parsed.asked, model),
        "timings": dict(zip(TIMINGS, timings_of(result.stats), strict=True)),
        "warnings": warnings_of(result.hypotheses, parsed.asked, model),
    }


def score_response(parsed: ParsedRequest, result: Result) -> messages.ScoreResponse:
    model = parsed.model
    fields = score_fields(result.hypotheses[0], parsed.asked, model)
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
            **manifest.decoding.model_dump(exclude={"max_length", "max_length_ratio"}),
            min_length=0,
            # Of the longest source, where it depends on the source.
            max_length=default_max_length(manifest, limits.max_source_tokens),
            suppress_unk=False,
        ),
        evaluation=[
            messages.EvaluationResult(**one.model_dump(exclude={"precision", "difference"}))
            for one in manifest.evaluation
            # What was measured of other graphs says nothing certain of these.
            if one.precision == model.precision
        ],
        manifest_json=manifest.to_text(),
        label=model.label,
        role=ROLES[role],
    )


def _hypothesis(hypothesis: Hypothesis, parsed: ParsedRequest) -> dict[str, Any]:
    fields = hypothesis_fields(hypothesis, parsed.asked, parsed.model)
    fields["attention"] = _attention(fields["attention"])
    fields["finish_reason"] = FINISH_REASONS[hypothesis.finish_reason]
    return fields


def _attention(attention: Floats | None) -> messages.Attention | None:
    """[summands, source tokens]; None leaves the field unset."""
    if attention is None:
        return None
    rows, columns = attention.shape
    return messages.Attention(rows=rows, columns=columns, weights=attention.ravel().tolist())


def _flattened(section: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Dotted names of what is nested; what is None is left out."""
    pairs: list[tuple[str, str]] = []
    for name, value in section.items():
        if isinstance(value, dict):
            pairs += _flattened(value, f"{prefix}{name}.")
        elif value is not None:
            pairs.append((prefix + name, str(value).lower() if isinstance(value, bool) else str(value)))
    return pairs
