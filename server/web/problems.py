"""Errors as problem details (RFC 9457): the gRPC status, in HTTP's words."""

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import grpc
from google.protobuf import json_format
from google.rpc import code_pb2, error_details_pb2, status_pb2
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"

# As google.rpc.Code has them; 499 is nginx's, for a client that has gone.
STATUSES = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
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


class HttpError(Exception):
    """A request that reaches no method, with a status of HTTP's own."""

    def __init__(self, http_status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.status = status_pb2.Status(code=grpc.StatusCode[code].value[0], message=message)
        self._headers = headers

    def response(self) -> Response:
        return problem_response(self.status, self.http_status, headers=self._headers)


def members(status: status_pb2.Status, http_status: int | None = None) -> dict[str, Any]:
    """The problem's members: those of RFC 9457, the code's name, and google.rpc's details where there are any."""
    code = code_pb2.Code.Name(status.code)
    http_status = http_status or STATUSES[code]
    problem = {
        "type": "about:blank",
        "title": TITLES.get(http_status) or HTTPStatus(http_status).phrase,
        "status": http_status,
        "detail": status.message,
        "code": code,
    }
    if status.details:
        problem["details"] = json_format.MessageToDict(status)["details"]
    return problem


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
