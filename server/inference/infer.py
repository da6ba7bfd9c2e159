"""ModelInfer: each text of a tensor becomes a request like those of Generate, and goes the same way."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from attendant.runtime.answers import hypothesis_fields, source_tokens, warnings_of
from attendant.runtime.requests import Violation, Violations
from attendant.server.catalogue.models import ServedModel
from attendant.server.engine.request import Result
from attendant.server.engine.shares import MAX_ANSWER_BYTES
from attendant.server.errors import InvalidArgument
from attendant.server.grpc.conversion import num_cells, written
from attendant.server.grpc.many import ANSWERS_IN_A_ROW
from attendant.server.grpc.requests import ParsedRequest, off_the_loop, read_generate, submit_all
from attendant.server.inference.parameters import set_options
from attendant.server.inference.tensors import INPUT, add_outputs, read_outputs, read_texts
from attendant.server.inference.v2 import open_inference_pb2 as wire
from attendant_client.v1 import seq2seq_pb2 as messages


async def infer(
    request: wire.ModelInferRequest, model: ServedModel, time_remaining: Callable[[], float | None]
) -> wire.ModelInferResponse:
    """The response.

    Args:
        time_remaining: the seconds until the call's deadline; None: it has none.

    Raises:
        AttendantError: the first one that a text ends with.
    """
    names, parsed = await off_the_loop(request.ByteSize(), partial(_read, request, model))
    outcomes = await asyncio.gather(*submit_all(parsed, time_remaining()))
    results = []
    for one, outcome in zip(parsed, outcomes, strict=True):
        results.append(one.result_of_generate(outcome))
        if len(results) % ANSWERS_IN_A_ROW == 0:
            await asyncio.sleep(0)
    return await written(sum(map(num_cells, results)), partial(_response, request, model, names, parsed, results))


def _response(
    request: wire.ModelInferRequest,
    model: ServedModel,
    names: list[str],
    parsed: list[ParsedRequest],
    results: list[Result],
) -> wire.ModelInferResponse:
    response = wire.ModelInferResponse(model_name=model.name, model_version=model.label, id=request.id)
    answers = [
        {
            "hypotheses": [hypothesis_fields(hypothesis, one.asked, model) for hypothesis in result.hypotheses],
            "source_tokens": source_tokens(one.asked, model),
            "warnings": warnings_of(result.hypotheses, one.asked, model),
        }
        for one, result in zip(parsed, results, strict=True)
    ]
    add_outputs(response, names, answers, raw=bool(request.raw_input_contents))
    return response


def _read(request: wire.ModelInferRequest, model: ServedModel) -> tuple[list[str], list[ParsedRequest]]:
    """The outputs that are asked for, and a request for each text."""
    violations, like = Violations(), messages.GenerateRequest(request_id=request.id)
    texts, names = read_texts(request, violations), read_outputs(request, violations)
    set_options(like, request.parameters, violations)
    if violations.found:
        raise InvalidArgument(*violations.found)
    like.output.attention = "attention" in names
    like.output.token_log_probs = "token_log_probs" in names
    parsed = []
    for place, text in enumerate(texts):
        one = messages.GenerateRequest(text=text)
        one.MergeFrom(like)
        try:
            parsed.append(read_generate(one, model))
        except InvalidArgument as error:
            raise InvalidArgument(*(_in_their_words(found, place) for found in error.violations)) from None
    # The tensors are as large as if every text's answer were the largest one.
    num_bytes = len(parsed) * max(one.max_answer_bytes for one in parsed)
    if num_bytes > MAX_ANSWER_BYTES:
        state = f"{len(texts)} texts whose answers may take {num_bytes >> 20} MiB"
        limit = f"texts whose answers take {MAX_ANSWER_BYTES >> 20} MiB at most"
        raise InvalidArgument(Violation(f"inputs[{INPUT}]", state, limit))
    return names, parsed


def _in_their_words(found: Violation, place: int) -> Violation:
    """A violation of a text's request, by the name that its field has in this protocol."""
    if found.field in ("text", "source"):
        return replace(found, field=f"inputs[{INPUT}][{place}]")
    if found.field == "request_id":
        return replace(found, field="id")
    section, _, name = found.field.partition(".")
    name = name.removeprefix("sampling.").replace(".tokens", "")
    return replace(found, field=f"{'outputs' if name == 'attention' else 'parameters'}.{name}" if section else name)
