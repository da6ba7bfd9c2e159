import asyncio
import io
import json
import logging
import random
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendant.runtime.errors import Violations
from attendant.server.errors import AttendantError, DeadlineExceeded, InvalidArgument, UnknownModel
from attendant.server.logs import (
    AUDIT,
    MAX_CHARACTERS,
    MAX_REPEATED,
    LogFormat,
    RepetitionFilter,
    configure_audit,
    configure_logging,
)

SECRET = "sesame"


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


def test_text_lines_have_quoted_fields() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream=stream)
    logging.getLogger("server.x").info("two words", extra={"request_id": 'a"b\nc', "rows": 3, "empty": ""})
    logging.getLogger("server.x").debug("too quiet")
    (line,) = stream.getvalue().splitlines()
    assert line.split(" ", 1)[1] == (
        'level=info logger=server.x message="two words" request_id="a\\"b\\nc" rows=3 empty=""'
    )


def test_json_lines_hold_the_traceback() -> None:
    stream = io.StringIO()
    configure_logging("debug", "json", stream=stream)
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
def test_control_characters_in_logged_texts_are_escaped(log_format: LogFormat, text: str) -> None:
    stream = io.StringIO()
    configure_logging("info", log_format, stream=stream)
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
    configure_logging("info", "text", stream=stream)
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
    assert len(passed) == MAX_REPEATED + 4, "another place has its own allowance; lines below warning are not limited"


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
    entries = {level: [json.loads(line) for line in stream.getvalue().splitlines()] for level, stream in lines.items()}
    assert [entry["message"] for entry in entries["info"]] == ["done", "refused"]
    assert [(entry["client"], entry["code"]) for entry in entries["warning"]] == [("127.0.0.1", "UNAUTHENTICATED")]
    assert not entries["off"] and {entry["logger"] for entry in entries["info"]} == {"audit"}


def violations() -> InvalidArgument:
    violated = Violations()
    violated.add("tokens.tokens[3]", SECRET, "in the vocabulary")
    violated.add("decoding.beam_size", 99, "1 to 32")
    return InvalidArgument(*violated)


def fault() -> Exception:
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(f"no symbol {SECRET}") from error
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            violations(),
            "tokens.tokens[3] is not shown, must be in the vocabulary; decoding.beam_size is 99, must be 1 to 32",
        ),
        (UnknownModel(SECRET, ["b", "a"]), "the model is not served here; choose from a, b"),
        (DeadlineExceeded(), "the deadline passed before the answer was complete"),
    ],
)
def test_errors_are_logged_without_quotes(error: AttendantError, words: str) -> None:
    for log_texts, logged in (("off", words), ("on", str(error))):
        stream = io.StringIO()
        configure_logging("info", "json", log_texts, stream)  # type: ignore[arg-type]
        logging.getLogger("attendant.server.call").info("request ended", extra={"error": error})
        assert json.loads(stream.getvalue())["error"] == logged


@pytest.mark.parametrize("allowed", [False, True])
def test_exceptions_are_logged_by_class_and_line(allowed: bool) -> None:
    stream = io.StringIO()
    configure_logging("debug", "text", "on" if allowed else "off", stream)
    for name in ("attendant.server.call", "grpc._cython.cygrpc"):
        logging.getLogger(name).error("internal error", exc_info=fault())
    with closing(asyncio.new_event_loop()) as loop:
        loop.call_exception_handler({"message": "never retrieved", "future": SECRET})
    lines = [line for line in stream.getvalue().splitlines() if "level=error" in line]
    assert len(lines) == 3
    for line in lines[:2]:
        assert "internal error" in line and "KeyError" in line and "ValueError" in line and "in fault" in line
    assert "never retrieved" in lines[2]
    assert [SECRET in line for line in lines] == [allowed] * 3


def test_exceptions_of_the_engine_keep_their_messages() -> None:
    """The engine receives ids, not texts, so its exceptions quote none."""
    stream = io.StringIO()
    configure_logging("debug", "text", "off", stream)
    logging.getLogger("attendant.server.engine.thread").error("a step failed", exc_info=ValueError("bad shape"))
    assert "bad shape" in stream.getvalue()
