"""What every request has in common, an RPC's own or a stream's: how it ends, what is counted of it, what is logged."""

import logging
import time
import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from attendant.server.errors import AttendantError, InternalError
from attendant.server.models import Catalogue
from attendant.server.observability.metrics import Metrics
from attendant.server.observability.rpc_metrics import cancellation_code
from attendant.server.servicers.status import abort

log = logging.getLogger(__name__)

# Refused, in one way or another: neither a fault of ours, nor the end of the caller's patience.
REFUSALS = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "UNAVAILABLE"})
MAX_LOGGED_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class Failure:
    """What a request is told instead of an answer.

    Attributes:
        made_up_id: under which the log speaks of it, where the caller gave it no id; else empty.
    """

    error: AttendantError
    made_up_id: str = ""


class Account:
    """The requests of one method: each is counted and logged once, when it ends."""

    def __init__(self, method: str, catalogue: Catalogue, metrics: Metrics) -> None:
        self._method = method
        self._catalogue = catalogue
        self._metrics = metrics

    def close(
        self, request_id: str, model: str, began: float, raised: BaseException | None, cancelled_as: str = "CANCELLED"
    ) -> Failure | None:
        """A request has ended.

        Args:
            request_id: the caller's. Where it is empty one is made up for the log.
            model: as the caller named it.
            began: on time.monotonic.
            raised: what it ended with; None: an answer.
            cancelled_as: the code of what is neither one of our errors nor an ordinary exception: a cancellation.

        Returns:
            What to tell the caller; None where it has an answer, or has gone.
        """
        label, seconds = self._catalogue.label_of(model), time.monotonic() - began
        error = raised if isinstance(raised, AttendantError) else None
        made_up_id = ""
        if error is None and isinstance(raised, Exception):
            error = InternalError()
            made_up_id = "" if request_id else uuid.uuid4().hex
            log.error("internal error", exc_info=raised, extra=self._facts(request_id or made_up_id, label))
        code = error.code if error is not None else "OK" if raised is None else cancelled_as
        self._metrics.ended(model=label, method=self._method, code=code, seconds=seconds)
        if error is not None and code in REFUSALS:
            self._metrics.rejected.labels(label, error.reason).inc()
        if log.isEnabledFor(logging.DEBUG):
            made_up_id = made_up_id or ("" if request_id else uuid.uuid4().hex)
            facts = self._facts(request_id or made_up_id, label) | {"code": code, "seconds": round(seconds, 6)}
            log.debug("request ended", extra=facts | ({} if error is None else {"error": str(error)}))
        return None if error is None else Failure(error, made_up_id)

    def _facts(self, request_id: str, label: str) -> dict[str, object]:
        return {"request_id": request_id[:MAX_LOGGED_CHARACTERS], "method": self._method, "model": label}


class Answering:
    """Around the handling of an RPC that is one request: turns what it raises into a status, and closes its account.

    It never swallows anything: what it lets out instead of an exception is gRPC's own AbortError, and a cancellation
    goes on to gRPC, whose task it ends.
    """

    def __init__(self, account: Account, request_id: str, model: str, context: Any) -> None:
        """Before the handling begins; `request_id` and `model` as the caller gave them."""
        self._account = account
        self._request_id = request_id
        self._model = model
        self._context = context

    async def __aenter__(self) -> None:
        self._began = time.monotonic()

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        cancelled_as = "" if raised is None else cancellation_code(self._context)
        failure = self._account.close(self._request_id, self._model, self._began, raised, cancelled_as)
        if failure is not None:
            await abort(self._context, failure.error, failure.made_up_id)
