"""Tests of reading arbitrary bytes: the result is a value or an error with one reason."""

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendant.runtime.bundle import graph_content
from attendant.runtime.bundle.graph_content import read_graph
from attendant.runtime.bundle.reading import MAX_DEPTH, Unfit, files_in, open_file, parse_json, read_file
from attendant.runtime.errors import MAX_LINE, MAX_LINES, one_line, some_lines


def varint(number: int) -> bytes:
    head = bytes([number & 0x7F | (0x80 if number >= 128 else 0)])
    return head + varint(number >> 7) if number >= 128 else head


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def test_a_graph_of_nothing_but_fields_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_content, "MAX_FIELDS", 1000)
    inputs = b"\x0a\x00" * 1001
    node = b"\x0a" + varint(len(inputs)) + inputs
    with pytest.raises(Unfit, match="fields"):
        read_graph(b"\x3a" + varint(len(node)) + node)


@given(st.text())
def test_arbitrary_text_is_read_as_json_or_refused(text: str) -> None:
    try:
        value = parse_json(text)
    except Unfit:
        return
    assert value == json.loads(text)


@given(VALUES)
def test_valid_json_is_read_unchanged(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 10_000, 1_000_000])
def test_the_depth_of_json_is_bounded(depth: int) -> None:
    text = "[" * depth + "]" * depth
    if depth <= MAX_DEPTH:
        parse_json(text)
    else:
        with pytest.raises(Unfit, match="nested deeper"):
            parse_json(text)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    os.mkfifo(tmp_path / "fifo")
    files, others = files_in(tmp_path)
    assert files == {"folder/file": 5}
    assert [line.partition(":")[0] for line in others] == ["fifo", "link"]
    for name, kind in (("folder", "a folder"), ("link", "a symbolic link"), ("fifo", "a FIFO")):
        with pytest.raises(Unfit, match=kind):
            open_file(tmp_path / name, 9)
    assert read_file(tmp_path / "folder" / "file", 5) == b"12345"
    assert read_file(tmp_path / "folder" / "file", 1 << 60) == b"12345", "no more memory than the file's size"
    with pytest.raises(Unfit, match="5 bytes, may have 4"):
        read_file(tmp_path / "folder" / "file", 4)


@given(st.text())
def test_a_line_is_printable_and_short(text: str) -> None:
    for line in (one_line(text), *some_lines([text])):
        assert line.isprintable() and len(line) <= MAX_LINE


def test_a_list_of_many_lines_is_shortened() -> None:
    lines = some_lines([f"{number}" for number in range(1000)])
    assert len(lines) == MAX_LINES + 1 and lines[-1] == f"and {1000 - MAX_LINES} more"


@given(st.binary())
def test_arbitrary_bytes_are_read_as_a_graph_or_refused(content: bytes) -> None:
    with contextlib.suppress(Unfit):
        read_graph(content)
