"""A call of one of the server's methods, the table of the methods, and the records of requests.

A call has a client, a deadline and headers. gRPC, HTTP and Ray each have a subclass of `Call`; the methods see only
that class. Every port calls the methods through the same table. Each request of a call has a record, which counts, logs
and traces it once, when it ends.
"""

import itertools
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address, IPv6Network
from types import TracebackType
from typing import Any, ClassVar, Final
from urllib.parse import unquote

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from attendant.server.catalogue import Catalogue, Leases, ServedModel
from attendant.server.config import Openness
from attendant.server.errors import AttendantError, Failed, deadline_has_passed, error_of
from attendant.server.logs import AUDIT
from attendant.server.metrics import Metrics
from attendant.server.tracing import RequestSpan, Tracer

log = logging.getLogger(__name__)

MAX_ID_CHARACTERS: Final = 128  # Limit of a request's id, and of any other word of a caller that is kept or logged.
REQUEST_ID_HEADER: Final = "x-request-id"
"""Metadata or header with the id of a request whose message has none, or is not read."""

IPV6_PREFIX: Final = 64  # Leading bits of an IPv6 address that identify a client.

_PROCESS, _NUMBERS = secrets.token_hex(6), itertools.count(1)


def new_id() -> str:
    """Makes an id for a request that has none. It is cheap, since every such request needs one."""
    return f"{_PROCESS}-{next(_NUMBERS):x}"


class Call(ABC):
    """One call.

    Attributes:
        protocol: its name in traces, "grpc" or "http".
        peer: the other end, as gRPC names it: "ipv4:127.0.0.1:50123".
        client: the caller's name, by which limits and fair queueing distinguish clients; empty until credentials have
            been checked.
        method: the full name of the called method, for traces.
        span_parent: for traces, see `Tracer.parent_of`; None until the first request begins.
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
    """Represents a message that can't be decoded, so that it is answered and counted like any other request."""

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
    return Guard.CLIENTS if openness == "closed" else Guard.NONE


REFUSALS: Final = frozenset(
    {"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "UNAVAILABLE"}
)
"""Codes of requests that the server has refused, in contrast to faults and cancellations."""

NO_CREDENTIALS: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})


class RequestLog:
    def __init__(
        self, catalogue: Catalogue, metrics: Metrics, *, level: int = logging.DEBUG, tracer: Tracer | None = None
    ) -> None:
        """Makes a log; `level` is that of each request's line. Without a tracer, requests are not traced."""
        self.metrics = metrics
        self.catalogue = catalogue
        self.tracer = tracer
        self._level = level

    def begin(self, method: str, call: Call, request: Any = None) -> "RequestRecord":
        """Begins the record of a call that is one request. The request gets the call's id if it has none.

        Args:
            request: of any protocol; None if it could not be read.
        """
        call.identify(request)
        return RequestRecord(self, method, call, call.request_id, model_of(request))

    def begin_listed(self, method: str, call: Call, request: Any) -> "RequestRecord":
        """Begins the record of one request among several of a call. The request gets an id if it has none."""
        record = RequestRecord(self, method, call, request.request_id or new_id(), request.model)
        if not request.request_id and not isinstance(request, UndecodableRequest):
            request.request_id = record.request_id
        return record

    def require_decoded(self, method: str, call: Call, request: Any) -> None:
        """Raises Failed, after counting and logging the request, if the request could not be decoded."""
        if isinstance(request, UndecodableRequest):
            with self.begin(method, call, request):
                raise request.error

    def refused(self, method: str, call: Call, error: AttendantError) -> None:
        """Counts and logs a call that ended before a method was called. `method`: empty if there is no such method."""
        self.metrics.rejected.labels("", error.reason).inc()
        if error.code in NO_CREDENTIALS:
            self.audit(_facts(call.request_id, call.address, method, ""), error.code, error)
        self.write(_facts(call.request_id, call.client or call.address, method, "") | {"code": error.code}, error)

    def write(self, facts: dict[str, object], error: AttendantError | None) -> None:
        if log.isEnabledFor(self._level):
            if error is not None:
                facts |= {"error": error}
            log.log(self._level, "request ended", extra=facts)

    @staticmethod
    def audit(facts: dict[str, object], code: str, error: AttendantError | None) -> None:
        """Writes to the audit log that a client did something as administrator, or was refused."""
        level = logging.INFO if error is None else logging.WARNING
        reason = {} if error is None else {"reason": error.reason}
        AUDIT.log(level, "done" if error is None else "refused", extra=facts | {"code": code} | reason)


class RequestRecord:
    """A request, from its arrival to its end.

    As a context manager, it ends the request with the result of the block. Errors and bugs leave the block as `Failed`;
    cancellations are raised as they are.

    Attributes:
        request_id: under which the log, the answer and an error name the request.
        trace: None if requests are not traced.
    """

    def __init__(self, requests: RequestLog, method: str, call: Call, request_id: str, model: str) -> None:
        self._log = requests
        self._method = method
        self._call = call
        self.request_id = request_id[:MAX_ID_CHARACTERS]
        self._model = model[:MAX_ID_CHARACTERS]
        self._label = ""
        self._began = time.monotonic()
        self._leases: list[Leases] = []
        self._has_ended = False
        self.trace: RequestSpan | None = None
        if (tracer := requests.tracer) is not None:
            if call.span_parent is None:
                call.span_parent = tracer.parent_of(call.metadata())
            self.trace = tracer.begin(call.span_parent, call.protocol, call.method, call.address, self.request_id)

    @property
    def client(self) -> str:
        return self._call.client

    def lease(self, model: str, version: str) -> ServedModel:
        """Returns the version that answers the request, with a lease that lasts until the request ends.

        Any thread may call this, even after the end of the request, which then has no lease. Raises the errors of
        `Catalogue.lease`.
        """
        leased = self._log.catalogue.lease(model, version)
        self._leases.append(leased.leases)
        self._label = leased.name  # which may not be served any more when the request ends
        if self._has_ended:
            self._release()
        return leased

    def _release(self) -> None:
        with suppress(IndexError):
            self._leases.pop().release()

    def __enter__(self) -> "RequestRecord":
        return self

    def __exit__(self, kind: object, raised: BaseException | None, traceback: TracebackType | None) -> None:
        error = self.end(raised, "OK" if raised is None else self._call.cancellation_code)
        if error is not None:
            raise Failed(error) from None

    def end(self, raised: BaseException | None, cancelled_as: str = "CANCELLED") -> AttendantError | None:
        """Counts and logs the request.

        Args:
            raised: the exception that ended it; None if it has an answer.
            cancelled_as: the code of a cancellation.

        Returns:
            The error that the caller gets; None after an answer or a cancellation.
        """
        self._has_ended = True
        self._release()
        requests, client = self._log, self._call.client
        label, seconds = self._label or requests.catalogue.label_of(self._model), time.monotonic() - self._began
        error = error_of(raised)
        facts = _facts(self.request_id, client, self._method, label)
        if error is not None and error.code == "INTERNAL":
            log.error(
                "internal error", exc_info=None if error is raised else raised, extra=facts | {"reason": error.reason}
            )
        code = error.code if error is not None else "OK" if raised is None else cancelled_as
        exemplar = None
        if self.trace is not None:
            self.trace.end(model=label, code=code)
            exemplar = self.trace.exemplar
        requests.metrics.ended(model=label, method=self._method, code=code, seconds=seconds, exemplar=exemplar)
        if error is not None and code in REFUSALS:
            requests.metrics.rejected.labels(label, error.reason).inc()
        if self._method in FOR_ADMINISTRATORS or code in NO_CREDENTIALS:
            requests.audit(facts | {"model": self._model}, code, error)
        requests.write(facts | {"code": code, "seconds": round(seconds, 6)}, error)
        return error


def model_of(request: Any) -> str:
    """Returns the name of the model that a request of any protocol is for, or an empty string."""
    for name in ("model", "model_name", "name"):
        value: str | None = getattr(request, name, None)
        if value is not None:
            return value
    return ""


def _facts(request_id: str, client: str, method: str, label: str) -> dict[str, object]:
    return {"request_id": request_id, "client": client[:MAX_ID_CHARACTERS], "method": method, "model": label}
