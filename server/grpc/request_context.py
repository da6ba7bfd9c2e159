"""The context of a request, which may be a call of its own or one of several: counts and logs it once, when it ends."""

import asyncio
import itertools
import logging
import secrets
import time
from typing import Any, Final, NoReturn

import grpc

from attendant.server.auth import CLIENT, address_of, in_metadata
from attendant.server.catalogue.models import Catalogue
from attendant.server.deadlines import cancellation_code
from attendant.server.errors import AttendantError, error_of
from attendant.server.grpc.status import abort
from attendant.server.grpc.undecodable import UndecodableRequest, decoded
from attendant.server.logs import AUDIT, loggable
from attendant.server.metrics import Metrics
from attendant.server.tracing import TRACE, tracer

log = logging.getLogger(__name__)

# Refused, in one way or another: neither a fault of ours, nor the end of the caller's patience.
REFUSALS = frozenset(
    {"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "UNAVAILABLE"}
)

FOR_ADMINISTRATORS: Final = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})
"""Methods of the Open Inference Protocol."""

NO_CREDENTIALS = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})

MAX_ID_CHARACTERS: Final = 128
"""Of a request's id; and of any other word of a caller's that is kept or logged."""

GIVEN_ID_KEY = "x-request-id"
"""In a call's metadata or its HTTP headers: the id of a request whose message has none, or is not read."""

PROCESS = secrets.token_hex(6)
NUMBERS = itertools.count(1)


def new_id() -> str:
    """For a request whose caller gave it none; cheap, for each has one."""
    return f"{PROCESS}-{next(NUMBERS):x}"


def id_of(call: Any, request: Any = None) -> str:
    """A request's own id, else the one in the call's metadata, else one that is made up.

    Args:
        request: anything that has no id is taken for a request without one.
    """
    given = _field(request, "request_id", "id") or in_metadata(call, GIVEN_ID_KEY)
    return given[:MAX_ID_CHARACTERS] or new_id()


def identify(request: Any, request_id: str) -> None:
    """Sets the id of a request of Seq2Seq whose caller gave it none: its answer says the id that the log has."""
    if getattr(request, "request_id", None) == "" and not isinstance(request, UndecodableRequest):
        request.request_id = request_id


_level = logging.DEBUG


def log_requests(always: bool) -> None:
    """Whether the line of each request is at level info instead of debug: a switch of the process, like the log."""
    global _level  # noqa: PLW0603  # a process has one log
    _level = logging.INFO if always else logging.DEBUG


def model_of(request: Any) -> str:
    """The name of the model that a request is for, as its protocol spells that; empty where it names none."""
    return _field(request, "model", "model_name", "name")


def _field(request: Any, *names: str) -> str:
    """The field of the first of these names that a request has; empty where it has none. A miss takes a microsecond."""
    for name in names:
        value: str | None = getattr(request, name, None)
        if value is not None:
            return value
    return ""


class RequestContext:
    """A request from its arrival, when this is made, to its end.

    Attributes:
        client: whoever asks, by the one name that limits and fair queueing know.
        request_id: its caller's, or one that is made up; under which the log, the answer and an error speak of it.
        trace: None while traces are off.
    """

    __slots__ = ("_began", "_catalogue", "_method", "_metrics", "_model", "client", "request_id", "trace")

    def __init__(self, method: str, catalogue: Catalogue, metrics: Metrics, request_id: str, model: str) -> None:
        """`request_id` and `model` as the caller gave them: both may be empty."""
        self._method = method
        self._catalogue = catalogue
        self._metrics = metrics
        self.request_id = request_id[:MAX_ID_CHARACTERS] or new_id()
        self._model = model[:MAX_ID_CHARACTERS]
        self._began = time.monotonic()
        self.client = CLIENT.get()
        traced = tracer()
        self.trace = None if traced is None else traced.begin(self.request_id)

    @classmethod
    def of(cls, method: str, catalogue: Catalogue, metrics: Metrics, call: Any, request: Any) -> "RequestContext":
        """Of a call's only request, of whatever protocol."""
        return cls(method, catalogue, metrics, id_of(call, request), model_of(request))

    def end(self, raised: BaseException | None, cancelled_as: str = "CANCELLED") -> AttendantError | None:
        """Counts and logs the request.

        Args:
            raised: what it ended with; None: an answer.
            cancelled_as: the code of what is neither one of our errors nor an ordinary exception: a cancellation.

        Returns:
            What to tell the caller; None where it has an answer, or has gone.
        """
        label, seconds = self._catalogue.label_of(self._model), time.monotonic() - self._began
        error = error_of(raised)
        if error is not None and error.code == "INTERNAL":
            facts = _facts(self.request_id, self.client, self._method, label) | {"reason": error.reason}
            log.error("internal error", exc_info=None if error is raised else raised, extra=facts)
        code = error.code if error is not None else "OK" if raised is None else cancelled_as
        exemplar = None
        if self.trace is not None:
            self.trace.end(model=label, code=code)
            exemplar = self.trace.exemplar
        self._metrics.ended(model=label, method=self._method, code=code, seconds=seconds, exemplar=exemplar)
        if error is not None and code in REFUSALS:
            self._metrics.rejected.labels(label, error.reason).inc()
        if self._method in FOR_ADMINISTRATORS or code in NO_CREDENTIALS:
            _audit(_facts(self.request_id, self.client, self._method, self._model), code, error)
        if log.isEnabledFor(_level):
            facts = _facts(self.request_id, self.client, self._method, label)
            _log_end(facts | {"code": code, "seconds": round(seconds, 6)}, error)
        return error


async def refuse(call: Any, method: str, error: AttendantError, metrics: Metrics, request: Any = None) -> NoReturn:
    """Ends a call before a method of ours is called.

    Args:
        request: None: it has not been read.

    Raises:
        grpc.aio.AbortError: gRPC's own.
        asyncio.CancelledError: its caller has gone; it is neither counted nor logged.
    """
    request_id = id_of(call, request)
    try:
        await abort(call, error, request_id)
    except grpc.aio.AbortError:
        refused(call, method, error, metrics, request_id)
        raise
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None
    raise AssertionError("abort returned")


def refused(call: Any, method: str, error: AttendantError, metrics: Metrics, request_id: str) -> None:
    """Counts and logs such a call; `method`: empty where it is for none that there is."""
    metrics.rejected.labels("", error.reason).inc()
    if error.code in NO_CREDENTIALS:
        _audit(_facts(request_id, address_of(call.peer()), method, ""), error.code, error)
    if log.isEnabledFor(_level):
        client = CLIENT.get() or address_of(call.peer())
        _log_end(_facts(request_id, client, method, "") | {"code": error.code}, error)


def _audit(facts: dict[str, object], code: str, error: AttendantError | None) -> None:
    """Writes to the audit log who did, or was refused, what."""
    level = logging.INFO if error is None else logging.WARNING
    reason = {} if error is None else {"reason": error.reason}
    AUDIT.log(level, "done" if error is None else "refused", extra=facts | {"code": code} | reason)


def _facts(request_id: str, client: str, method: str, label: str) -> dict[str, object]:
    return {"request_id": request_id, "client": client[:MAX_ID_CHARACTERS], "method": method, "model": label}


def _log_end(facts: dict[str, object], error: AttendantError | None) -> None:
    log.log(_level, "request ended", extra=facts | ({} if error is None else {"error": loggable(error)}))


class Answering:
    """Around the handling of a call that is one request: counts and logs it, and makes a status of what is raised.

    Entering it raises what is wrong with a request that can't be decoded. In place of an exception it raises
    grpc.aio.AbortError, gRPC's own; asyncio.CancelledError stands: the call was cancelled, and gRPC ends its task.
    """

    __slots__ = ("_call", "_context", "_request")

    def __init__(self, method: str, catalogue: Catalogue, metrics: Metrics, call: Any, request: Any) -> None:
        """The request has come.

        Args:
            call: gRPC's context.
            request: of whatever protocol; it gets an id where its caller gave it none.
        """
        self._call, self._request = call, request
        self._context = RequestContext.of(method, catalogue, metrics, call, request)
        identify(request, self._context.request_id)
        TRACE.set(self._context.trace)

    async def __aenter__(self) -> None:
        try:
            decoded(self._request)
        except AttendantError as error:
            await self._failed(error)
            raise

    async def __aexit__(self, kind: object, raised: BaseException | None, traceback: object) -> None:
        if raised is None:
            self._context.end(None)
        else:
            await self._failed(raised)

    async def _failed(self, raised: BaseException) -> None:
        error = self._context.end(raised, cancellation_code(self._call))
        if error is not None:
            await abort(self._call, error, self._context.request_id)
