"""Log lines: one per event, key=value or JSON. Facts go in `extra`: log.info("refused", extra={"request_id": ...}).

A log line may contain any text that a caller wrote. Nevertheless, an event stays one line of printable characters, and
a caller that causes the same warning again and again does not fill the disk with it. Unless --log-texts is on, text of
callers is kept out: their tokens, and the messages of exceptions. The log then names requests by their ids, fields by
their names, and exceptions by their classes and the lines that raised them.
"""

import faulthandler
import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from attendant.runtime.errors import escaped
from attendant.server.config import AuditLevel, LogFormat, LogLevel, Switch
from attendant.server.errors import AttendantError

AUDIT = logging.getLogger("audit")
"""The actions of administrators, and the calls that are refused for lack of credentials."""

MAX_CHARACTERS = 16384  # Longest value in a line; a traceback of ours is shorter.
MAX_REPEATED = 20
REPEATED_PER_SECOND = 1.0
"""Warnings and errors of one place in the code: MAX_REPEATED at once, and this many a second after that."""

NEAR_TEXTS = (
    "asyncio",
    "grpc",
    "uvicorn",
    "attendant.server.call",
    "attendant.server.grpc",
    "attendant.server.http",
    "attendant.server.inference",
    "attendant.server.metrics",
)
"""Loggers of code that handles texts, whose exceptions may quote them. The engine handles only ids."""

# The attributes that every record has; all others are facts of ours.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """time, level, logger, message, then the facts in their order, then the traceback as one escaped field."""

    def __init__(self, log_format: LogFormat, log_texts: Switch) -> None:
        super().__init__()
        self._as_json = log_format == "json"
        self._with_texts = log_texts == "on"

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        may_quote = self._with_texts or not any(f"{record.name}.".startswith(f"{name}.") for name in NEAR_TEXTS)
        if record.name == "asyncio" and not may_quote:  # the lines after the first one show values
            entry["message"] = entry["message"].partition("\n")[0]
        entry |= {key: self._loggable(value) for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info and record.exc_info[1] is not None:
            raised = record.exc_info[1]
            entry["traceback"] = _cut(self.formatException(record.exc_info) if may_quote else _without_words(raised))
        if self._as_json:
            return escaped(json.dumps(entry, ensure_ascii=False, default=str))
        return " ".join(f"{key}={_quoted(value)}" for key, value in entry.items())

    def _loggable(self, value: Any) -> Any:
        if isinstance(value, AttendantError):
            return str(value) if self._with_texts else value.without_quotes
        return value


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}... {len(text)} characters"


def _quoted(value: Any) -> str:
    """Returns one plain word as it is, anything else as a JSON string, so that a line stays a line."""
    text = str(value)
    plain = text.isprintable() and text != "" and not any(character in text for character in ' "=')
    return text if plain else escaped(json.dumps(text, ensure_ascii=False))


def _without_words(raised: BaseException) -> str:
    """Returns the tracebacks of an exception and of its causes, with their classes but not their messages."""
    causes = [raised]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    parts = ["".join(traceback.format_tb(cause.__traceback__)) + type(cause).__qualname__ for cause in reversed(causes)]
    return "\n\nwhile that was handled:\n\n".join(parts)


@dataclass(slots=True)
class _Allowance:
    """Lines that a place in the code may still log at the time `at`."""

    lines: float
    at: float
    num_suppressed: int = 0


class RepetitionFilter(logging.Filter):
    """Limits the rate of warnings and errors, for each place in the code separately.

    The next line that passes has the number of dropped ones in `suppressed`. Lines below a warning were requested by
    --log-level, and always pass.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._allowances: dict[tuple[str, int], _Allowance] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now = self._clock()
        allowance = self._allowances.setdefault((record.pathname, record.lineno), _Allowance(MAX_REPEATED, now))
        allowance.lines = min(MAX_REPEATED, allowance.lines + (now - allowance.at) * REPEATED_PER_SECOND)
        allowance.at = now
        if allowance.lines < 1:
            allowance.num_suppressed += 1
            return False
        allowance.lines -= 1
        if allowance.num_suppressed:
            record.suppressed = allowance.num_suppressed
            allowance.num_suppressed = 0
        return True


def configure_logging(
    level: LogLevel, log_format: LogFormat, log_texts: Switch = "off", stream: TextIO = sys.stderr
) -> None:
    """Sends the logs of this process to `stream`."""
    logging.basicConfig(level=level.upper(), handlers=[_handler(log_format, log_texts, stream)], force=True)
    for library in ("asyncio", "grpc"):
        # Their debug lines, several per call, are about themselves.
        logging.getLogger(library).setLevel(max(logging.INFO, logging.getLogger().level))
    logging.getLogger("grpc._cython.cygrpc").addFilter(_quotes_no_header)


def _quotes_no_header(record: logging.LogRecord) -> bool:
    """Drops the line with which grpcio (1.85) logs headers that are not UTF-8, such as tokens."""
    return not str(record.msg).startswith("Invalid encoding on")


def configure_audit(level: AuditLevel, log_format: LogFormat, stream: TextIO = sys.stderr) -> None:
    """Sends the audit log to `stream`, independently of the level of other logs."""
    AUDIT.handlers, AUDIT.propagate = [_handler(log_format, "off", stream)], False
    AUDIT.setLevel(logging.CRITICAL + 1 if level == "off" else level.upper())


def _handler(log_format: LogFormat, log_texts: Switch, stream: TextIO) -> logging.Handler:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(log_format, log_texts))
    handler.addFilter(RepetitionFilter())
    return handler


def log_python_errors() -> None:
    """Logs the messages that Python itself would write to standard error, which may contain text that a caller wrote.

    If the process crashes, Python still writes its stacks there; gRPC's core writes nothing then.
    """
    faulthandler.enable()
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # a line that can't be written, on a full disk, is lost without a traceback
    log = logging.getLogger(__name__)
    sys.excepthook = lambda kind, raised, stack: log.critical("the process ends by an exception", exc_info=raised)
    sys.unraisablehook = lambda event: log.error("an exception was ignored", exc_info=event.exc_value)
    threading.excepthook = lambda event: log.error("a thread has failed", exc_info=event.exc_value)
