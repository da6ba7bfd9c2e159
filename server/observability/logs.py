"""Log lines: one per event, key=value or JSON. Facts go in `extra`: log.info("refused", extra={"request_id": ...})."""

import json
import logging
import sys
import time
from typing import Any, TextIO

from attendant.server.config import LogFormat, LogLevel

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
            "message": record.getMessage(),
        }
        entry |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        if self._as_json:
            return json.dumps(entry, ensure_ascii=False, default=str)
        return " ".join(f"{key}={_quoted(value)}" for key, value in entry.items())


def _quoted(value: Any) -> str:
    """As it is where it is one plain word; else a JSON string, so that a line stays a line."""
    text = str(value)
    plain = text.isprintable() and text != "" and not any(character in text for character in ' "=')
    return text if plain else json.dumps(text, ensure_ascii=False)


def configure_logging(level: LogLevel, log_format: LogFormat, stream: TextIO = sys.stderr) -> None:
    """Sends the logs of this process to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(log_format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for library in ("asyncio", "grpc"):
        # Their debug lines, several per call, are about themselves.
        logging.getLogger(library).setLevel(max(logging.INFO, logging.getLogger().level))
