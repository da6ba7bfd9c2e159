"""The result of one request of several, in the answer to all of them: a response or a status."""

from functools import partial
from typing import Any

from attendant.server.engine.request import Outcome, Result
from attendant.server.errors import Unavailable
from attendant.server.grpc.conversion import generate_fields, num_cells, written
from attendant.server.grpc.request_context import RequestContext
from attendant.server.grpc.requests import ParsedRequest
from attendant.server.grpc.status import status_of
from attendant.server.tracing import TRACE


async def result_fields(
    request_id: str, context: RequestContext, parsed: ParsedRequest | None, outcome: Outcome | BaseException | None
) -> dict[str, Any] | None:
    """A GenerateBatchResponse's fields; None where the end of the whole call answers it. Ends the request's context.

    Args:
        outcome: an exception that is none of ours is a fault, or a cancellation.
    """
    raised = outcome if isinstance(outcome, BaseException) else None
    response = None
    if isinstance(outcome, Result):
        assert parsed is not None, "what was submitted had been read"
        TRACE.set(context.trace)
        try:
            result = parsed.result_of_generate(outcome)
            response = await written(num_cells(result), partial(generate_fields, parsed, result))
        except Exception as error:
            raised = error
    told = context.end(raised, "UNAVAILABLE")
    if response is not None:
        return {"request_id": request_id, "response": response}
    if told is None or isinstance(told, Unavailable):
        return None
    return {"request_id": request_id, "error": status_of(told, context.request_id)}
