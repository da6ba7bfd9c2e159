"""Errors as gRPC statuses: the one mapping."""

import asyncio
import math
from functools import partial
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from attendant.runtime.requests import cut
from attendant.server.errors import AttendantError, InvalidArgument, Overloaded

DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
MAX_DETAILS_BYTES, MAX_DETAIL_CHARACTERS = 3072, 160
"""What a status lists of violations. It travels in trailing metadata, of which gRPC's clients accept some 8 KiB."""

REQUEST_ID_KEY = "attendant-request-id"


def status_of(error: AttendantError, request_id: str) -> status_pb2.Status:
    """The status with its details: BadRequest where a request is wrong, RetryInfo where it came too early, RequestInfo.

    Args:
        request_id: under which the log speaks of the request.
    """
    status = status_pb2.Status(code=grpc.StatusCode[error.code].value[0], message=str(error))
    details: list[Message] = []
    if isinstance(error, InvalidArgument):
        request = error_details_pb2.BadRequest()
        for one in error.violations:
            shown = cut(one.field, MAX_DETAIL_CHARACTERS), cut(one.description, MAX_DETAIL_CHARACTERS)
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


async def abort(context: Any, error: AttendantError, request_id: str) -> NoReturn:
    """Ends an RPC with an error.

    Args:
        request_id: under which the log speaks of the request.

    gRPC's own retries know nothing of RetryInfo: they obey the pushback, so both are sent.
    """
    metadata: list[tuple[str, str | bytes]] = [(DETAILS_KEY, status_of(error, request_id).SerializeToString())]
    # A header holds ASCII only; the details hold any id.
    if request_id.isascii() and request_id.isprintable():
        metadata.append((REQUEST_ID_KEY, request_id))
    if isinstance(error, Overloaded):
        metadata.append((PUSHBACK_KEY, str(math.ceil(error.retry_seconds * 1000))))
    try:
        await context.abort(grpc.StatusCode[error.code], str(error), tuple(metadata))
    except grpc.aio.AbortError as aborted:
        if (task := asyncio.current_task()) is not None:
            task.add_done_callback(partial(_forget_frames, aborted, error))
        raise
    raise AssertionError("abort returned")


def _forget_frames(aborted: BaseException, error: BaseException, _: object) -> None:
    """Lets the call be freed: it keeps the first exception, variables may keep the second, and frames keep the call."""
    aborted.__context__ = None
    aborted.__traceback__ = error.__traceback__ = None
