"""What every RPC of ours has in common: how it ends, what is counted of it, what is logged."""

import logging
import time
import uuid
from types import TracebackType
from typing import Any

from server.errors import AttendantError, InternalError
from server.interceptor import cancellation_code
from server.metrics import Metrics
from server.models import Catalogue
from server.servicers.status import abort

log = logging.getLogger(__name__)

# Refused, in one way or another: neither a fault of ours, nor the end of the caller's patience.
REFUSALS = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "UNAVAILABLE"})
MAX_LOGGED_CHARACTERS = 128


class Answering:
    """Around the handling of one request: turns what it raises into a status, counts it, logs it.

    It never swallows anything: what it lets out instead of an exception is gRPC's own AbortError, and a cancellation
    goes on to gRPC, whose task it ends.
    """

    def __init__(
        self, method: str, request_id: str, model: str, context: Any, catalogue: Catalogue, metrics: Metrics
    ) -> None:
        """Before the handling begins.

        Args:
            method: the RPC's short name.
            request_id: the caller's. Where it is empty one is made up for the log, and sent with a status that the
                log speaks of.
            model: as the caller named it.
        """
        self._method = method
        self._request_id = request_id
        self._model = model
        self._context = context
        self._catalogue = catalogue
        self._metrics = metrics

    async def __aenter__(self) -> None:
        self._began = time.monotonic()

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        label = self._catalogue.label_of(self._model)
        error = raised if isinstance(raised, AttendantError) else None
        made_up_id = ""
        if error is None and isinstance(raised, Exception):
            error = InternalError()
            made_up_id = "" if self._request_id else uuid.uuid4().hex
            log.error("internal error", exc_info=raised, extra=self._facts(made_up_id, label))
        code = error.code if error is not None else "OK" if raised is None else cancellation_code(self._context)
        self._metrics.ended(model=label, method=self._method, code=code, seconds=time.monotonic() - self._began)
        if error is not None and code in REFUSALS:
            self._metrics.rejected.labels(label, error.reason).inc()
        if log.isEnabledFor(logging.DEBUG):
            made_up_id = made_up_id or ("" if self._request_id else uuid.uuid4().hex)
            facts = self._facts(made_up_id, label) | {"code": code, "seconds": round(time.monotonic() - self._began, 6)}
            log.debug("request ended", extra=facts | ({} if error is None else {"error": str(error)}))
        if error is not None:
            await abort(self._context, error, made_up_id)

    def _facts(self, made_up_id: str, label: str) -> dict[str, object]:
        request_id = (self._request_id or made_up_id)[:MAX_LOGGED_CHARACTERS]
        return {"request_id": request_id, "method": self._method, "model": label}
