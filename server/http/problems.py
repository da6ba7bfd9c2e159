"""Errors as problem details (RFC 9457): the gRPC status, in HTTP's words."""

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Protocol

from google.protobuf import json_format
from google.rpc import code_pb2, error_details_pb2, status_pb2
from starlette.responses import Response
from starlette.types import Scope

from attendant.server.errors import AttendantError
from attendant.server.grpc.request_context import id_of, refused
from attendant.server.grpc.status import status_of
from attendant.server.http.call import HttpCall
from attendant.server.metrics import Metrics

MEDIA_TYPE = "application/problem+json"

# As google.rpc.Code has them; 499 is nginx's, for a client that has gone.
STATUSES = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "FAILED_PRECONDITION": 400,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
TITLES = {499: "Client Closed Request"}


class HttpError(AttendantError):
    """A request that reaches no method, with a status of HTTP's own."""

    reason = "http"

    def __init__(self, http_status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.code = code
        self.headers = headers

    @property
    def without_quotes(self) -> str:
        return HTTPStatus(self.http_status).phrase


class Problem(Protocol):
    """Makes the answer that says an error: its status, HTTP's own status if that is another one, and its headers."""

    def __call__(
        self, status: status_pb2.Status, http_status: int | None = None, headers: Mapping[str, str] | None = None, /
    ) -> Response: ...


def refusal(
    scope: Scope, method: str, error: AttendantError, metrics: Metrics, problem: Problem | None = None
) -> Response:
    """The answer to a request that no method has seen, which is counted and logged.

    Args:
        method: as for `refused`.
        problem: makes it; if None, `problem_response`.
    """
    problem = problem or problem_response
    call = HttpCall(scope)
    request_id = id_of(call)
    refused(call, method, error, metrics, request_id)
    status = status_of(error, request_id)
    if isinstance(error, HttpError):
        return problem(status, error.http_status, error.headers)
    return problem(status)


def members(status: status_pb2.Status, http_status: int | None = None) -> dict[str, Any]:
    """The problem's members: those of RFC 9457, the code's name, and google.rpc's details."""
    code = code_pb2.Code.Name(status.code)
    http_status = http_status or STATUSES[code]
    return {
        "type": "about:blank",
        "title": TITLES.get(http_status) or HTTPStatus(http_status).phrase,
        "status": http_status,
        "detail": status.message,
        "code": code,
        "details": json_format.MessageToDict(status)["details"],
    }


def problem_response(
    status: status_pb2.Status, http_status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer that says it, with the headers that HTTP has for such an error."""
    problem = members(status, http_status)
    headers = dict(headers or {})
    if problem["status"] == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    retry = error_details_pb2.RetryInfo()
    if any(detail.Unpack(retry) for detail in status.details):
        headers["retry-after"] = str(math.ceil(retry.retry_delay.ToNanoseconds() / 1e9))
    text = json.dumps(problem, ensure_ascii=False)
    return Response(text, problem["status"], headers, media_type=MEDIA_TYPE)
