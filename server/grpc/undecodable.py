"""A stand-in for a request that can't be decoded, which is thus answered and counted like any other."""

from dataclasses import dataclass
from typing import TypeVar

from attendant.server.errors import AttendantError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UndecodableRequest:
    """Bytes that are no message of the method's.

    Attributes:
        error: what the caller is told.
    """

    num_bytes: int
    error: AttendantError
    request_id: str = ""
    model: str = ""

    def ByteSize(self) -> int:  # noqa: N802  # as protobuf's messages have it
        return self.num_bytes


def decoded(request: T | UndecodableRequest) -> T:
    """The request, where it is one.

    Raises:
        AttendantError: what its caller is told.
    """
    if isinstance(request, UndecodableRequest):
        raise request.error
    return request
