"""Log lines: one per event, key=value or JSON. Facts go in `extra`: log.info("refused", extra={"request_id": ...}).

A log line may contain a stranger's words. An event stays one line of printable characters whatever they are, and a
stranger who causes the same warning again and again does not fill the disk with it. Unless --log-texts is on, the words
of callers are kept out: their tokens, and the messages of exceptions. The log then names requests by their ids, fields
by their names, and exceptions by their classes and the lines that raised them.
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
from types import TracebackType
from typing import Any, TextIO

from attendant.runtime.errors import escaped
from attendant.server.config import AuditLevel, LogFormat, LogLevel

AUDIT = logging.getLogger("audit")
"""What callers did as administrators, or were refused to do."""

MAX_CHARACTERS = 16384
"""Of one value in a line: a traceback of ours is shorter."""

MAX_REPEATED = 20
REPEATED_PER_SECOND = 1.0
"""A warning or an error of one place in the code: so many at once, and so many a second from then on."""

# The attributes that every record has; all others are facts of ours.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """time, level, logger, message, then the facts in the order given, then the traceback as one escaped field."""

    def __init__(self, log_format: LogFormat) -> None:
        super().__init__()
        self._as_json = log_format == "json"

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        entry |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            entry["traceback"] = _cut(self.formatException(record.exc_info))
        if self._as_json:
            return escaped(json.dumps(entry, ensure_ascii=False, default=str))
        return " ".join(f"{key}={_quoted(value)}" for key, value in entry.items())


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}... {len(text)} characters"


def _quoted(value: Any) -> str:
    """As it is where it is one plain word; else a JSON string, so that a line stays a line."""
    text = str(value)
    plain = text.isprintable() and text != "" and not any(character in text for character in ' "=')
    return text if plain else escaped(json.dumps(text, ensure_ascii=False))


@dataclass(slots=True)
class _Allowance:
    """What a place in the code may still log, as of `at`."""

    lines: float
    at: float
    num_suppressed: int = 0


class RepetitionFilter(logging.Filter):
    """Lets warnings and errors pass at a limited rate, each place in the code by itself.

    The next line that passes says in `suppressed` how many did not. What is logged below a warning was asked for by
    --log-level, and always passes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._allowances: dict[tuple[str, int], _Allowance] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now = self._clock()
        found = self._allowances.setdefault((record.pathname, record.lineno), _Allowance(MAX_REPEATED, now))
        found.lines = min(MAX_REPEATED, found.lines + (now - found.at) * REPEATED_PER_SECOND)
        found.at = now
        if found.lines < 1:
            found.num_suppressed += 1
            return False
        found.lines -= 1
        if found.num_suppressed:
            record.suppressed = found.num_suppressed
            found.num_suppressed = 0
        return True


def configure_logging(level: LogLevel, log_format: LogFormat, stream: TextIO = sys.stderr) -> None:
    """Sends the logs of this process to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(log_format))
    handler.addFilter(RepetitionFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for library in ("asyncio", "grpc"):
        # Their debug lines, several per call, are about themselves.
        logging.getLogger(library).setLevel(max(logging.INFO, logging.getLogger().level))


def configure_audit(level: AuditLevel, log_format: LogFormat, stream: TextIO = sys.stderr) -> None:
    """Sends the audit log to `stream`, whatever the level of other logs."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(log_format))
    handler.addFilter(RepetitionFilter())
    AUDIT.handlers, AUDIT.propagate = [handler], False
    AUDIT.setLevel(logging.CRITICAL + 1 if level == "off" else level.upper())


def log_what_python_prints() -> None:
    """Sends what Python itself would write to standard error, which may be a stranger's words too, to the logs.

    Not so the last words of a process that crashes: they are Python's stacks, and gRPC's core says nothing then.
    """
    faulthandler.enable()
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # a line that can't be written, on a full disk, is lost without a traceback
    log = logging.getLogger(__name__)

    def on_uncaught(kind: type[BaseException], raised: BaseException, stack: TracebackType | None) -> None:
        log.critical("the process ends by an exception", exc_info=raised)

    def on_unraisable(found: "sys.UnraisableHookArgs") -> None:
        log.error("an exception was ignored", exc_info=found.exc_value)

    def on_thread(found: threading.ExceptHookArgs) -> None:
        log.error("a thread has failed", exc_info=found.exc_value)

    sys.excepthook = on_uncaught
    sys.unraisablehook = on_unraisable
    threading.excepthook = on_thread


NEAR_TEXTS = (
    "asyncio",
    "grpc",
    "uvicorn",
    "attendant.server.grpc",
    "attendant.server.inference",
    "attendant.server.http",
    "attendant.server.inference",
    "attendant.server.metrics",
)
"""Loggers that tell of exceptions of code that has texts at hand; the engine knows ids alone."""


class TextFilter(logging.Filter):
    """Takes the words of exceptions out of the lines of NEAR_TEXTS."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not any(record.name == name or record.name.startswith(name + ".") for name in NEAR_TEXTS):
            return True
        if record.name == "asyncio":  # the lines after the first one show values
            record.msg, record.args = record.getMessage().partition("\n")[0], ()
        if record.exc_info and record.exc_info[1] is not None:
            record.traceback = _without_words(record.exc_info[1])
            record.exc_info = None
        return True


def hide_texts() -> None:
    """Keeps what callers wrote out of the log, which must have been configured."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(TextFilter())


def _without_words(raised: BaseException) -> str:
    """Its traceback, and those of its causes, with their classes alone."""
    causes = [raised]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    parts = ["".join(traceback.format_tb(one.__traceback__)) + type(one).__qualname__ for one in reversed(causes)]
    return "\n\nwhile that was handled:\n\n".join(parts)
