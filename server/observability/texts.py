"""Keeps what callers wrote out of the log: their tokens, and the words of exceptions, which may be theirs.

A switch of the process, like the log itself. The log names requests by their ids, fields by their names, exceptions by
their classes and the lines that they came from.
"""

import logging
import traceback

from attendant.server.errors import AttendantError

NEAR_TEXTS = (
    "asyncio",
    "grpc",
    "uvicorn",
    "attendant.server.grpc",
    "attendant.server.inference",
    "attendant.server.observability",
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


_filter = TextFilter()
_is_allowed = False


def log_texts(allowed: bool) -> None:
    """Whether the log may hold texts; to be said once the log has been configured."""
    global _is_allowed  # noqa: PLW0603  # a process has one log
    _is_allowed = allowed
    for handler in logging.getLogger().handlers:
        handler.removeFilter(_filter)
        if not allowed:
            handler.addFilter(_filter)


def loggable(error: AttendantError) -> str:
    """An error's message, as it may stand in the log."""
    return str(error) if _is_allowed else error.without_quotes


def _without_words(raised: BaseException) -> str:
    """Its traceback, and those of its causes, with their classes alone."""
    causes = [raised]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    parts = ["".join(traceback.format_tb(one.__traceback__)) + type(one).__qualname__ for one in reversed(causes)]
    return "\n\nwhile that was handled:\n\n".join(parts)
