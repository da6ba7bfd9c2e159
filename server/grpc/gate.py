"""The table of methods, and the gate before them, which every door of the server uses."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from attendant.server.auth import Access
from attendant.server.call import Call, name_in_certificate
from attendant.server.config import Openness
from attendant.server.errors import PermissionDenied, RateLimited, Unauthenticated
from attendant.server.grpc.request_log import FOR_ADMINISTRATORS, RequestLog


class Guard(Enum):
    """Credentials that a method asks for."""

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


class GrpcCall(Call):
    """A call of gRPC.

    Attributes:
        context: gRPC's servicer context, whose type lacks most of its methods.
    """

    def __init__(self, context: Any) -> None:
        super().__init__(context.peer())
        self.context = context

    def metadata(self) -> Iterable[tuple[str, str | bytes]]:
        """See `Call`."""
        return self.context.invocation_metadata() or ()

    def time_remaining(self) -> float | None:
        """See `Call`."""
        remaining: float | None = self.context.time_remaining()
        return remaining

    def certificate_name(self) -> str:
        """See `Call`."""
        return name_in_certificate(self.context.auth_context())


class Gate:
    """Checks credentials, and keeps each client within its rate. All doors of the server use it."""

    def __init__(self, access: Access, log: RequestLog) -> None:
        self._access = access
        self._log = log

    @property
    def needs_tokens(self) -> bool:
        """True if calls need a token."""
        return self._access.tokens is not None

    def let_in(self, rpc: Rpc, request: Any, call: Call) -> None:
        """Sets the call's client, and charges it for the request.

        Args:
            request: or an iterator of requests, which are charged one by one, see `wait_seconds`.

        Raises:
            Failed: the call is refused, and has been counted.
            Unauthenticated: so is a call that is not counted.
        """
        call.method = rpc.full_name
        if rpc.guard is Guard.NONE:
            call.client = call.address
            return
        try:
            administers = rpc.guard is Guard.ADMINISTRATORS
            call.client = (self._access.administrator_of if administers else self._access.client_of)(call)
            if not rpc.streams_requests and (seconds := self.wait_seconds(rpc, request, call)) > 0:
                raise RateLimited(seconds)
        except (PermissionDenied, RateLimited, Unauthenticated) as error:
            call.client = call.client or self._access.known_client(call)
            if not rpc.is_counted:
                raise
            with self._log.begin(rpc.name, call, request):
                raise error

    def check_again(self, rpc: Rpc, call: Call) -> None:
        """Checks the credentials of a stream, whose token may have been revoked. Raises Failed."""
        if rpc.guard is not Guard.NONE:
            try:
                self._access.client_of(call)
            except Unauthenticated:
                with self._log.begin(rpc.name, call):
                    raise

    def wait_seconds(self, rpc: Rpc, request: Any, call: Call) -> float:
        """Charges the client for a request and returns 0, or returns the seconds until the request could be let in."""
        rates = self._access.rates
        if not (rates.limited and rpc.is_counted):
            return 0.0
        return rates.take(call.client, request.ByteSize(), rpc.size(request))

    def charge_listed(self, rpc: Rpc, request: Any, call: Call) -> None:
        """Charges the client for a list that was charged as one request before it was read."""
        if (rates := self._access.rates).limited:
            rates.charge(call.client, 0, rpc.size(request) - 1)
