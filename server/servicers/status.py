"""Errors as gRPC statuses: the one mapping."""

import math
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from attendant.server.errors import AttendantError, InvalidArgument, Overloaded

DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
REQUEST_ID_KEY = "attendant-request-id"


def status_of(error: AttendantError, made_up_id: str = "") -> status_pb2.Status:
    """The status with its details: BadRequest where a request is wrong, RetryInfo where it came too early.

    Args:
        made_up_id: under which the log speaks of the request, where the caller gave it no id: its RequestInfo.
    """
    status = status_pb2.Status(code=grpc.StatusCode[error.code].value[0], message=str(error))
    details: list[Message] = []
    if isinstance(error, InvalidArgument):
        details.append(
            error_details_pb2.BadRequest(
                field_violations=[
                    error_details_pb2.BadRequest.FieldViolation(field=one.field, description=one.description)
                    for one in error.violations
                ]
            )
        )
    elif isinstance(error, Overloaded):
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(error.retry_seconds * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if made_up_id:
        details.append(error_details_pb2.RequestInfo(request_id=made_up_id))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


async def abort(context: Any, error: AttendantError, made_up_id: str = "") -> NoReturn:
    """Ends an RPC with an error.

    Args:
        made_up_id: under which the log speaks of the request, where the caller gave it no id.

    gRPC's own retries know nothing of RetryInfo: they obey the pushback, so both are sent.
    """
    status = status_of(error)
    metadata: list[tuple[str, str | bytes]] = [(REQUEST_ID_KEY, made_up_id)] if made_up_id else []
    if status.details:
        metadata.append((DETAILS_KEY, status.SerializeToString()))
    if isinstance(error, Overloaded):
        metadata.append((PUSHBACK_KEY, str(math.ceil(error.retry_seconds * 1000))))
    await context.abort(grpc.StatusCode[error.code], str(error), tuple(metadata))
    raise AssertionError("abort returned")
