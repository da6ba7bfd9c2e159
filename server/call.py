"""A call of one of the server's methods, and the table of the methods.

A call has a client, a deadline and headers. gRPC, HTTP and Ray each have a subclass of `Call`; the methods see only
that class. Every port calls the methods through the same table.
"""

import itertools
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address, IPv6Network
from typing import Any, ClassVar, Final
from urllib.parse import unquote

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from attendant.server.config import Openness
from attendant.server.errors import AttendantError, deadline_has_passed

MAX_ID_CHARACTERS: Final = 128
"""Limit of a request's id, and of any other word of a caller that is kept or logged."""

REQUEST_ID_HEADER: Final = "x-request-id"
"""Metadata or header with the id of a request whose message has none, or is not read."""

IPV6_PREFIX: Final = 64
"""A customer with one IPv6 address usually has 2^64 of them."""

_PROCESS, _NUMBERS = secrets.token_hex(6), itertools.count(1)


def new_id() -> str:
    """Makes an id for a request that has none. It is cheap, since every such request needs one."""
    return f"{_PROCESS}-{next(_NUMBERS):x}"


class Call(ABC):
    """One call.

    Attributes:
        protocol: its name in traces, "grpc" or "http".
        peer: the other end, as gRPC names it: "ipv4:127.0.0.1:50123".
        client: the caller's name, by which limits and fair queueing tell clients apart; empty until credentials have
            been checked.
        method: the full name of the called method, for traces.
        span_parent: for traces, see `Tracer.begin`.
    """

    protocol: ClassVar[str] = "grpc"

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.client = self.method = ""
        self.span_parent: Any = None
        self._request_id = ""
        self._is_identified = False

    @abstractmethod
    def metadata(self) -> Iterable[tuple[str, str | bytes]]:
        """Returns gRPC's metadata or HTTP's headers, with keys in lower case."""

    @abstractmethod
    def time_remaining(self) -> float | None:
        """Returns the seconds until the deadline; None if the call has none."""

    @abstractmethod
    def certificate_name(self) -> str:
        """Returns the name in the client's TLS certificate, or an empty string."""

    def header(self, key: str) -> str:
        """Returns the metadata or header with this key, or an empty string."""
        for name, value in self.metadata():
            if name == key:
                return value if isinstance(value, str) else value.decode("latin-1")
        return ""

    @property
    def address(self) -> str:
        """The caller's address, see `address_of`."""
        return address_of(self.peer)

    @property
    def request_id(self) -> str:
        """The id that the log and the answer have: the message's, else the header's, else a new one."""
        if not self._request_id:
            self._request_id = self.header(REQUEST_ID_HEADER)[:MAX_ID_CHARACTERS] or new_id()
        return self._request_id

    @request_id.setter
    def request_id(self, request_id: str) -> None:
        self._request_id = request_id[:MAX_ID_CHARACTERS]

    def identify(self, request: Any) -> None:
        """Takes the id of the call's only request. A request that could have an id, and has none, gets the call's."""
        if self._is_identified:  # looking up a missing field takes a microsecond
            return
        self._is_identified = True
        own = getattr(request, "request_id", None)
        if request_id := own or getattr(request, "id", None):
            self.request_id = request_id
        elif own is not None and not isinstance(request, UndecodableRequest):
            request.request_id = self.request_id

    @property
    def cancellation_code(self) -> str:
        """The code of a call whose task was cancelled: gRPC does not give the reason, but the deadline does."""
        return "DEADLINE_EXCEEDED" if deadline_has_passed(self.time_remaining()) else "CANCELLED"


@dataclass(frozen=True, slots=True)
class UndecodableRequest:
    """Stands for a message that can't be decoded, so that it is answered and counted like any other request."""

    num_bytes: int
    error: AttendantError
    request_id: str = ""
    model: str = ""

    def ByteSize(self) -> int:  # noqa: N802  # like protobuf's messages
        return self.num_bytes


def address_of(peer: str) -> str:
    """Returns the address in gRPC's name of the other end, without its port; for IPv6 the network of one customer."""
    family, _, rest = peer.partition(":")
    return family if family == "unix" else _without_port(rest)


@lru_cache(maxsize=4096)
def _without_port(host_and_port: str) -> str:
    host = unquote(host_and_port).rpartition(":")[0].strip("[]")
    try:
        address = IPv6Address(host)
    except AddressValueError:
        return host
    mapped: IPv4Address | None = address.ipv4_mapped
    return str(mapped or IPv6Network((int(address), IPV6_PREFIX), strict=False))


def name_in_certificate(auth_context: Mapping[str, Sequence[bytes]]) -> str:
    """Returns the common name of a client's certificate, or its first alternative name if it has none.

    Args:
        auth_context: gRPC's facts about a connection whose client has shown a certificate.
    """
    for kind in ("x509_common_name", "x509_subject_alternative_name"):
        for value in auth_context.get(kind, ()):
            if value:
                return value.decode(errors="backslashreplace")
    return ""


FOR_ADMINISTRATORS: Final = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})
"""Methods of the Open Inference Protocol that need an administrator's token, and are in the audit log."""


class Guard(Enum):
    """The credentials that a method requires."""

    NONE = auto()
    CLIENTS = auto()
    ADMINISTRATORS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rpc:
    """A method of the table.

    Attributes:
        answer: called with the request, or an iterator of requests, and the call. Returns the response, to be awaited,
            or an iterator of responses.
        is_counted: its requests have metrics, log lines and rates. Probes, health and reflection have none.
        size: returns the number of requests in a message, for rates.
    """

    service: str
    name: str
    request_class: type[Message]
    streams_requests: bool
    streams_responses: bool
    answer: Callable[[Any, Any], Any]
    guard: Guard
    is_counted: bool
    size: Callable[[Any], int] = lambda message: max(1, len(getattr(message, "requests", ())))

    @property
    def full_name(self) -> str:
        """Service and method, as a call's path has them."""
        return f"{self.service}/{self.name}"


def rpcs_of(service: ServiceDescriptor, servicer: object) -> dict[str, Rpc]:
    """Makes the table of a service, whose methods a servicer has under their names."""
    return {
        method.name: Rpc(
            service=service.full_name,
            name=method.name,
            request_class=GetMessageClass(method.input_type),
            streams_requests=method.client_streaming,
            streams_responses=method.server_streaming,
            answer=getattr(servicer, method.name),
            guard=Guard.ADMINISTRATORS if method.name in FOR_ADMINISTRATORS else Guard.CLIENTS,
            is_counted=True,
        )
        for method in service.methods
    }


def guard_of(openness: Openness) -> Guard:
    """Returns the guard of health checks, probes or reflection."""
    return Guard.CLIENTS if openness == "closed" else Guard.NONE
