"""ModelInfer: each text of a tensor becomes a request like those of Generate, and goes the same way."""

import asyncio
from dataclasses import replace
from typing import Any

from attendant.server.errors import InvalidArgument, Violation
from attendant.server.models import ServedModel
from attendant.server.servicers.conversion import generate_fields
from attendant.server.servicers.inference.parameters import set_options
from attendant.server.servicers.inference.tensors import INPUT, add_outputs, read_outputs, read_texts
from attendant.server.servicers.inference.v2 import open_inference_pb2 as wire
from attendant.server.servicers.requests import ParsedRequest, parsed, read_generate
from attendant_client.v1 import seq2seq_pb2 as messages

MAX_ANSWER_BYTES = 1 << 24
"""What the answers of one call may come to take in memory, roughly: they are all there before any is written."""


async def infer(request: wire.ModelInferRequest, model: ServedModel, timeout_seconds: float | None) -> Any:
    """The response.

    Raises:
        AttendantError: the first one that a text ends with.
    """
    names, asked = await parsed(_read, request, model)
    submitted = []
    try:
        for one in asked:
            submitted.append(one.submit(timeout_seconds))
        outcomes = await asyncio.gather(*submitted)
    except BaseException:
        for outcome in submitted:
            outcome.cancel()
        raise
    answers = [generate_fields(one, one.generated(outcome)) for one, outcome in zip(asked, outcomes, strict=True)]
    response = wire.ModelInferResponse(model_name=model.name, model_version=model.label, id=request.id)
    add_outputs(response, names, answers, raw=bool(request.raw_input_contents))
    return response


def _read(request: wire.ModelInferRequest, model: ServedModel) -> tuple[list[str], list[ParsedRequest]]:
    """The outputs that are asked for, and a request for each text."""
    texts, names = read_texts(request), read_outputs(request)
    like = messages.GenerateRequest(request_id=request.id)
    set_options(like, request.parameters)
    like.output.attention = "attention" in names
    like.output.token_log_probs = "token_log_probs" in names
    asked, num_bytes = [], 0
    for place, text in enumerate(texts):
        one = messages.GenerateRequest(text=text)
        one.MergeFrom(like)
        try:
            asked.append(read_generate(one, model))
        except InvalidArgument as error:
            raise InvalidArgument(*(_in_their_words(found, place) for found in error.violations)) from None
        num_bytes += asked[-1].max_answer_bytes
        if num_bytes > MAX_ANSWER_BYTES:
            limit = f"at most {place}: the answers of more may take more than {MAX_ANSWER_BYTES >> 20} MiB together"
            raise InvalidArgument(Violation(f"inputs[{INPUT}]", f"{len(texts)} texts", limit))
    return names, asked


def _in_their_words(found: Violation, place: int) -> Violation:
    """A violation of a text's request, by the name that its field has in this protocol."""
    if found.field in ("text", "source"):
        return replace(found, field=f"inputs[{INPUT}][{place}]")
    if found.field == "request_id":
        return replace(found, field="id")
    section, _, name = found.field.partition(".")
    name = name.removeprefix("sampling.").removesuffix(".tokens")
    return replace(found, field=f"{'outputs' if name == 'attention' else 'parameters'}.{name}" if section else name)
