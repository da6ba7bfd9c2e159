import io
import json
import logging
from collections.abc import Iterator

import pytest

from attendant.server.observability.logs import configure_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    libraries = {name: logging.getLogger(name).level for name in ("asyncio", "grpc")}
    yield
    root.handlers[:], level = before[0], before[1]
    root.setLevel(level)
    for name, kept in libraries.items():
        logging.getLogger(name).setLevel(kept)


def test_text_lines() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    logging.getLogger("server.x").info("two words", extra={"request_id": 'a"b\nc', "rows": 3, "empty": ""})
    logging.getLogger("server.x").debug("too quiet")
    (line,) = stream.getvalue().splitlines()
    assert line.split(" ", 1)[1] == (
        'level=info logger=server.x message="two words" request_id="a\\"b\\nc" rows=3 empty=""'
    )


def test_json_lines_hold_the_traceback() -> None:
    stream = io.StringIO()
    configure_logging("debug", "json", stream)
    try:
        raise ValueError("inner words")
    except ValueError:
        logging.getLogger("server.x").exception("it failed", extra={"request_id": "r1"})
    logging.getLogger("grpc._cython.cygrpc").debug("about itself")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["message"], entry["request_id"]) == ("error", "it failed", "r1")
    assert "ValueError: inner words" in entry["traceback"]
    assert entry["time"].endswith("Z")
