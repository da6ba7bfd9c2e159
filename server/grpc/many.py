"""GenerateMany: a list in one call. It is accepted as a whole or not at all; then each request ends for itself."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from attendant.runtime.requests import Violation
from attendant.server.catalogue.models import Catalogue
from attendant.server.deadlines import cancellation_code
from attendant.server.engine.request import Outcome
from attendant.server.engine.shares import MAX_ANSWER_BYTES
from attendant.server.errors import AttendantError, InvalidArgument, Unavailable, error_of
from attendant.server.grpc.conversion import written
from attendant.server.grpc.request_context import RequestContext, id_of, identify
from attendant.server.grpc.requests import (
    TOKEN_BYTES,
    ParsedRequest,
    of_each_model,
    off_the_loop,
    read_generate,
    submit_all,
)
from attendant.server.grpc.results import result_fields
from attendant.server.grpc.status import abort
from attendant.server.grpc.undecodable import UndecodableRequest, decoded
from attendant_client.v1 import seq2seq_pb2 as messages

MAX_REQUESTS = 256
"""A full batch of rows by default, and half of what one client may have waiting."""

ANSWERS_IN_A_ROW = 16
"""Made in one turn of the event loop: nobody should wait for hundreds of them."""


@dataclass(slots=True)
class _Item:
    """A request of the list, and how far it has come.

    Attributes:
        parsed: None where something is wrong with it.
        refused: what is wrong with it.
        submitted: None where something is wrong with it.
    """

    context: RequestContext
    parsed: ParsedRequest | None = None
    refused: AttendantError | None = None
    submitted: asyncio.Future[Outcome] | None = None


async def answers_to(
    asked: messages.GenerateManyRequest | UndecodableRequest,
    catalogue: Catalogue,
    begin: Callable[[str, str], RequestContext],
    call: Any,
) -> messages.GenerateManyResponse:
    """Decodes all, and answers in their order. Cancelling it frees the rows of all within a step.

    Args:
        begin: makes the context of a request that has this id and names this model.
        call: gRPC's context.

    Raises:
        grpc.aio.AbortError: the call fails as a whole, under the id of its first request. InvalidArgument: it is no
            list, or too long, or its answers could be. Overloaded: not all of them can be accepted. Unavailable,
            InternalError: what concerns every request alike.
    """
    try:
        requests = requests_of(asked)
    except AttendantError as error:
        unlisted = begin(id_of(call), "")
        unlisted.end(error)
        await abort(call, error, unlisted.request_id)
    items = deque(_Item(begin(one.request_id, one.model)) for one in requests)
    for item, request in zip(items, requests, strict=True):
        identify(request, item.context.request_id)
    first_id = items[0].context.request_id
    try:
        await off_the_loop(asked.ByteSize(), partial(_read, items, requests, catalogue))
        num_bytes = _check_answers(items)
        _submit(items, call.time_remaining())
        results = await _results(items)
        return await written(num_bytes // TOKEN_BYTES, partial(messages.GenerateManyResponse, results=results))
    except BaseException as raised:
        code = cancellation_code(call)
        for item in items:
            if item.submitted is not None:
                item.submitted.cancel()
            item.context.end(raised, code)
        if (told := error_of(raised)) is not None:
            await abort(call, told, first_id)
        raise


def requests_of(asked: messages.GenerateManyRequest | UndecodableRequest) -> Sequence[messages.GenerateRequest]:
    """The requests of a list.

    Raises:
        AttendantError: it can't be decoded, or has too few or too many.
    """
    requests = decoded(asked).requests
    if not 1 <= len(requests) <= MAX_REQUESTS:
        raise InvalidArgument(Violation("requests", f"{len(requests)} items long", f"1 to {MAX_REQUESTS} items long"))
    return requests


def _read(items: Iterable[_Item], requests: Iterable[messages.GenerateRequest], catalogue: Catalogue) -> None:
    for item, request in zip(items, requests, strict=True):
        try:
            item.parsed = read_generate(request, catalogue.find(request.model, request.version))
        except AttendantError as error:
            # Its frames refer to the item.
            item.refused = error.with_traceback(None)


def _check_answers(items: Iterable[_Item]) -> int:
    """Returns the memory that the answers may take. Raises InvalidArgument if that is too much."""
    num_bytes = sum(item.parsed.max_answer_bytes for item in items if item.parsed is not None)
    if num_bytes > MAX_ANSWER_BYTES:
        state = f"a list whose answers may take {num_bytes >> 20} MiB"
        raise InvalidArgument(Violation("requests", state, f"one of at most {MAX_ANSWER_BYTES >> 20} MiB"))
    return num_bytes


def _submit(items: Iterable[_Item], timeout_seconds: float | None) -> None:
    """Hands what has been read to the engines, the requests of each model together."""
    for mine in of_each_model(items):
        submitted = submit_all([parsed for _, parsed in mine], timeout_seconds)
        for (item, _), outcome in zip(mine, submitted, strict=True):
            item.submitted = outcome


async def _results(items: deque[_Item]) -> list[dict[str, Any]]:
    """The fields of all results; an item leaves the list once it has ended."""
    results: list[dict[str, Any]] = []
    while items:
        item = items[0]
        outcome = item.refused if item.submitted is None else await item.submitted
        if isinstance(outcome, Unavailable):
            raise outcome
        items.popleft()
        fields = await result_fields(item.context.request_id, item.context, item.parsed, outcome)
        assert fields is not None, "what ends the whole call was raised"
        results.append(fields)
        if len(results) % ANSWERS_IN_A_ROW == 0:
            await asyncio.sleep(0)
    return results
