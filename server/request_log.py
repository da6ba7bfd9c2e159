"""Counts, logs and traces each request once, when it ends."""

import logging
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from attendant.server.call import FOR_ADMINISTRATORS, MAX_ID_CHARACTERS, Call, UndecodableRequest, new_id
from attendant.server.catalogue import Catalogue, Leases, ServedModel
from attendant.server.errors import AttendantError, Failed, error_of
from attendant.server.logs import AUDIT
from attendant.server.metrics import Metrics
from attendant.server.tracing import Tracer

log = logging.getLogger(__name__)

REFUSALS: Final = frozenset(
    {"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "UNAVAILABLE"}
)
"""Codes of requests that the server has refused, in contrast to faults and cancellations."""

NO_CREDENTIALS: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})


class RequestLog:
    """Begins the records of requests."""

    def __init__(
        self,
        catalogue: Catalogue,
        metrics: Metrics,
        *,
        level: int = logging.DEBUG,
        tracer: Tracer | None = None,
    ) -> None:
        """Makes a log.

        Args:
            level: of the line of each request.
            tracer: None if requests are not traced.
        """
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
        """Writes the line of a request."""
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

    __slots__ = ("_began", "_call", "_has_ended", "_leases", "_log", "_method", "_model", "request_id", "trace")

    def __init__(self, requests: RequestLog, method: str, call: Call, request_id: str, model: str) -> None:
        self._log = requests
        self._method = method
        self._call = call
        self.request_id = request_id[:MAX_ID_CHARACTERS]
        self._model = model[:MAX_ID_CHARACTERS]
        self._began = time.monotonic()
        self._leases: list[Leases] = []
        self._has_ended = False
        self.trace = None if requests.tracer is None else requests.tracer.begin(call, self.request_id)

    @property
    def client(self) -> str:
        """The name of the caller."""
        return self._call.client

    def lease(self, model: str, version: str) -> ServedModel:
        """Returns the version that answers the request, with a lease that lasts until the request ends.

        Any thread may call this, even after the end of the request, which then has no lease.

        Raises:
            AttendantError: see `Catalogue.lease`.
        """
        leased = self._log.catalogue.lease(model, version)
        self._leases.append(leased.leases)
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
        label, seconds = requests.catalogue.label_of(self._model), time.monotonic() - self._began
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
