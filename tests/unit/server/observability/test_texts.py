"""What callers wrote stays out of the log, unless it was asked for."""

import asyncio
import io
import logging
from collections.abc import Iterator
from contextlib import closing

import pytest

from attendant.runtime.requests import Violations
from attendant.server.errors import AttendantError, DeadlineExceeded, InvalidArgument, UnknownModel
from attendant.server.logs import TextFilter, configure_logging, hide_texts

SECRET = "sesame"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    written = io.StringIO()
    configure_logging("debug", "text", written)
    yield written
    root.handlers[:], root.level = before
    for handler in root.handlers:  # pytest's own, which stay for the tests to come
        handler.filters[:] = [one for one in handler.filters if not isinstance(one, TextFilter)]


def violations() -> InvalidArgument:
    found = Violations()
    found.add("tokens.tokens[3]", SECRET, "in the vocabulary")
    found.add("decoding.beam_size", 99, "1 to 32")
    return InvalidArgument(*found.found)


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
        (DeadlineExceeded(), "the deadline passed before the answer was whole"),
    ],
)
def test_errors_are_logged_without_quotes(error: AttendantError, words: str) -> None:
    assert error.without_quotes == words


@pytest.mark.parametrize("allowed", [False, True])
def test_exceptions_are_logged_by_class_and_line(allowed: bool, stream: io.StringIO) -> None:
    if not allowed:
        hide_texts()
    for name in ("attendant.server.grpc.request_log", "grpc._cython.cygrpc"):
        logging.getLogger(name).error("internal error", exc_info=fault())
    with closing(asyncio.new_event_loop()) as loop:
        loop.call_exception_handler({"message": "never retrieved", "future": SECRET})
    lines = [line for line in stream.getvalue().splitlines() if "level=error" in line]
    assert len(lines) == 3
    for line in lines[:2]:
        assert "internal error" in line and "KeyError" in line and "ValueError" in line and "in fault" in line
    assert "never retrieved" in lines[2]
    assert [SECRET in line for line in lines] == [allowed] * 3


def test_the_engine_knows_no_texts_and_tells_all(stream: io.StringIO) -> None:
    hide_texts()
    logging.getLogger("attendant.server.engine.thread").error("a step failed", exc_info=ValueError("bad shape"))
    assert "bad shape" in stream.getvalue()
