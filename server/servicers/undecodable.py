"""What stands in the place of a request that can't be decoded: our service answers and counts it like any other."""

from dataclasses import dataclass
from typing import TypeVar

from attendant.server.errors import Undecodable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UndecodableRequest:
    """Bytes that are no message of the method's.

    Attributes:
        why: for the caller; empty: nothing is known but that.
    """

    num_bytes: int
    request_id: str = ""
    model: str = ""
    why: str = ""

    def ByteSize(self) -> int:  # noqa: N802  # as protobuf's messages have it
        return self.num_bytes


def decoded(request: T | UndecodableRequest) -> T:
    """The request, where it is one.

    Raises:
        Undecodable
    """
    if isinstance(request, UndecodableRequest):
        raise Undecodable(request.num_bytes, request.why)
    return request
