import io
import json
import logging
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendant.server.logs import (
    AUDIT,
    MAX_CHARACTERS,
    MAX_REPEATED,
    LogFormat,
    RepetitionFilter,
    configure_audit,
    configure_logging,
)


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


HOSTILE = "\n\r\x0b\x0c\x1b\x7f\x80\x85\x9b\u2028\u2029\u202a\u202e\u2066\ufeff"


@pytest.mark.parametrize("log_format", ["text", "json"])
@given(text=st.text(st.characters() | st.sampled_from(HOSTILE), max_size=20))
def test_no_text_of_a_strangers_ends_or_turns_a_line(log_format: LogFormat, text: str) -> None:
    stream = io.StringIO()
    configure_logging("info", log_format, stream)
    try:
        raise ValueError(text)
    except ValueError:
        logging.getLogger("server.x").info("%s", text, extra={"request_id": text, "many": [text]}, exc_info=True)
    written = stream.getvalue()
    assert written.endswith("\n") and written[:-1].isprintable()
    if log_format == "json":
        entry = json.loads(written)
        assert entry["message"] == entry["request_id"] == text and entry["many"] == [text]


def test_a_value_is_not_longer_than_some_thousand_characters() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    logging.getLogger("server.x").info("x" * 1_000_000)
    assert MAX_CHARACTERS < len(stream.getvalue()) < MAX_CHARACTERS + 200


def test_a_warning_that_comes_again_and_again_is_counted_instead() -> None:
    now = 0.0
    limit = RepetitionFilter(clock=lambda: now)
    passed = []

    def warn(line: int, level: int = logging.WARNING) -> None:
        record = logging.LogRecord("grpc", level, "file.py", line, f"words {random.random()}", (), None)
        if limit.filter(record):
            passed.append(getattr(record, "suppressed", 0))

    for _ in range(1000):
        warn(line=1)
    assert passed == [0] * MAX_REPEATED
    now = 2.5
    for _ in range(10):
        warn(line=1)
    assert passed[MAX_REPEATED:] == [1000 - MAX_REPEATED, 0], "two seconds, two lines"
    warn(line=2)
    warn(line=1, level=logging.INFO)
    assert len(passed) == MAX_REPEATED + 4, "another place is another allowance; what is no warning is not limited"


def test_the_audit_log_has_a_level_and_a_format_of_its_own() -> None:
    before = AUDIT.handlers, AUDIT.level, AUDIT.propagate
    lines = {level: io.StringIO() for level in ("info", "warning", "off")}
    try:
        for level, stream in lines.items():
            configure_audit(level, "json", stream)  # type: ignore[arg-type]
            AUDIT.info("done", extra={"client": "operator", "method": "RepositoryModelLoad"})
            AUDIT.warning("refused", extra={"client": "127.0.0.1", "code": "UNAUTHENTICATED"})
    finally:
        AUDIT.handlers, AUDIT.level, AUDIT.propagate = before
    found = {level: [json.loads(line) for line in stream.getvalue().splitlines()] for level, stream in lines.items()}
    assert [one["message"] for one in found["info"]] == ["done", "refused"]
    assert [(one["client"], one["code"]) for one in found["warning"]] == [("127.0.0.1", "UNAUTHENTICATED")]
    assert not found["off"] and {one["logger"] for one in found["info"]} == {"audit"}
