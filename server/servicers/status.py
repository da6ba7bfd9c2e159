"""Our errors as gRPC statuses: the one place where the two meet."""

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from server.errors import AttendantError, InvalidArgument, Overloaded

PUSHBACK = "grpc-retry-pushback-ms"
DETAILS = "grpc-status-details-bin"


def code_of(error: AttendantError) -> grpc.StatusCode:
    return grpc.StatusCode[error.code]


def trailers_of(error: AttendantError) -> tuple[tuple[str, str | bytes], ...]:
    """The trailing metadata that explains an error: google.rpc details, and when to retry.

    RetryInfo is for people and libraries; gRPC's own retries obey only the push-back, so both are sent.
    """
    detail = _detail(error)
    if detail is None:
        return ()
    packed = any_pb2.Any()
    packed.Pack(detail)
    status = status_pb2.Status(code=code_of(error).value[0], message=str(error), details=[packed])
    trailers: tuple[tuple[str, str | bytes], ...] = ((DETAILS, status.SerializeToString()),)
    if isinstance(error, Overloaded):
        trailers += ((PUSHBACK, str(max(1, round(error.retry_seconds * 1000)))),)
    return trailers


def _detail(error: AttendantError) -> error_details_pb2.BadRequest | error_details_pb2.RetryInfo | None:
    if isinstance(error, InvalidArgument):
        return error_details_pb2.BadRequest(
            field_violations=[
                error_details_pb2.BadRequest.FieldViolation(field=v.field, description=v.description)
                for v in error.violations
            ]
        )
    if isinstance(error, Overloaded):
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_seconds * 1e9))
        return error_details_pb2.RetryInfo(retry_delay=delay)
    return None
