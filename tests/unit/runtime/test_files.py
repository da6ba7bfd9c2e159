"""Tests of files that are written completely or not at all, and of escaped texts."""

import errno
import json
import os
import re
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendant.runtime.errors import UserError, escaped
from attendant.runtime.files import (
    CantWrite,
    new_file,
    new_folder,
    only_writer,
    sha256_of,
    translate_os_errors,
    write_json,
    write_text,
)


def tree(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text() if path.is_file() else "" for path in folder.rglob("*")
    }


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old\n")
    with pytest.raises(RuntimeError), new_file(path) as file:
        file.write("new")
        raise RuntimeError
    assert tree(tmp_path) == {"file": "old\n"}
    write_json(path, {"b": 1, "a": "é"})
    assert tree(tmp_path) == {"file": '{\n  "a": "é",\n  "b": 1\n}\n'}


def test_a_folder_appears_whole_with_the_folders_above_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "deeper" / "folder"
    with pytest.raises(RuntimeError), new_folder(path) as folder:
        (folder / "file").write_text("new")
        raise RuntimeError
    assert tree(tmp_path) == {}
    with new_folder(path) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("new")
        assert not path.exists()
    assert tree(path) == {"inner": "", "inner/file": "new"}
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) & 0o055 == 0o055 & ~mask


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "place: can't be written: No space left on device: make room, or name another place"),
        (errno.EROFS, "place: can't be written: Read-only file system: name a place that you may write to"),
        (errno.EIO, "place: can't be written: Input/output error"),
    ],
)
def test_an_error_of_the_system_is_one_line_with_a_remedy(number: int, message: str) -> None:
    with pytest.raises(CantWrite) as refusal, translate_os_errors(Path("place")):
        raise OSError(number, "words")
    assert str(refusal.value) == message and refusal.value.number == number


@pytest.mark.parametrize("raised", [FileNotFoundError(errno.ENOENT, "words"), ValueError(), UserError("mine")])
def test_other_errors_are_not_translated(raised: Exception) -> None:
    with pytest.raises(type(raised)) as caught, translate_os_errors(Path("place")):
        raise raised
    assert caught.value is raised


@pytest.mark.parametrize("path", ["/proc/place", "/proc/deep/place"])
def test_a_folder_that_can_not_be_written_to_is_refused_in_one_line(path: str) -> None:
    with (
        pytest.raises(CantWrite, match=r"^/proc.*: can't be written: No such file or directory$"),
        new_folder(Path(path)),
    ):
        raise AssertionError("the folder was made")
    with pytest.raises(CantWrite, match=r"^/proc.*: can't be written: No such file or directory$"):
        write_text(Path(path), "new")


def test_a_pipe_and_an_open_file_are_written_to_and_stay(tmp_path: Path) -> None:
    """Checks that `--output /dev/stdout` or `/dev/null` by root does not make a file of the device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        write_text(pipe, "new")
        assert reader.read() == "new" and pipe.is_fifo()
    with (tmp_path / "redirected").open("w+") as file:
        print("before", file=file, flush=True)
        write_text(Path(f"/dev/fd/{file.fileno()}"), "new")
        file.seek(0)
        assert file.read() == "before\nnew"
    assert set(tree(tmp_path)) == {"pipe", "redirected"}


def test_a_folder_is_not_replaced_by_a_file_and_a_broken_link_is(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(CantWrite, match="folder: can't be written: Is a directory"):
        write_text(tmp_path / "folder", "new")
    write_text(tmp_path / "link", "new")
    assert tree(tmp_path) == {"folder": "", "link": "new"}


def test_a_missing_file_is_named_with_the_searched_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^data/train.tsv: there is no such file in {re.escape(str(Path.cwd()))}$"):
        sha256_of(Path("data/train.tsv"))
    with pytest.raises(UserError, match=r"/train\.tsv: there is no such file$"):
        sha256_of(tmp_path / "train.tsv")
    with pytest.raises(UserError, match=r"can't be read: Is a directory$"):
        sha256_of(tmp_path)


def test_two_writers_of_one_file_leave_it_whole(tmp_path: Path) -> None:
    path, texts = tmp_path / "file", [letter * 100_000 for letter in "ab"]
    write_text(path, texts[0])
    ending = threading.Event()

    def write(text: str) -> None:
        while not ending.is_set():
            write_text(path, text)

    with ThreadPoolExecutor(2) as threads:
        writing = [threads.submit(write, text) for text in texts]
        contents = {path.read_text() for _ in range(200)}
        ending.set()
    for writer in writing:
        writer.result()
    assert contents <= set(texts) and set(tree(tmp_path)) == {"file"}


def test_a_link_at_a_hidden_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attendant.runtime.files.secrets.token_hex", lambda num_bytes: "guessed")
    (tmp_path / "precious").write_text("kept")
    (tmp_path / ".file.guessed.writing").symlink_to("precious")
    with pytest.raises(CantWrite):
        write_text(tmp_path / "file", "new")
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_folder_has_one_writer_which_is_named(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "mine"
    with only_writer(run):
        refused = pytest.raises(UserError, match=rf"mine: process {os.getpid()} is writing to it")
        with refused, only_writer(run):
            raise AssertionError("there are two")
    with only_writer(run):
        pass


# Characters that end a line or change its look: C0, DEL, C1 with NEL, both separators, directions, zero width.
HOSTILE = "\x00\t\n\r\x1b[2J\x7f\x80\x85\x9b\u00ad\u061c\u200b\u200e\u2028\u2029\u202a\u202e\u2066\u2069\ufeff"


def test_unprintable_characters_are_escaped() -> None:
    assert escaped("a\nb\x85c\u2028d\u202ee\U000e0001") == "a\\nb\\u0085c\\u2028d\\u202ee\\udb40\\udc01"
    assert escaped("Grüße, 你好 \\n") == "Grüße, 你好 \\n"


@given(st.text(st.characters() | st.sampled_from(HOSTILE)))
def test_a_text_becomes_one_printable_line_of_the_same_words(text: str) -> None:
    assert escaped(text).isprintable()
    assert json.loads(escaped(json.dumps(text, ensure_ascii=False))) == text


def test_a_name_that_another_process_has_taken_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    with (
        pytest.raises(CantWrite, match=r"folder: can't be written: Directory not empty$"),
        new_folder(tmp_path / "folder"),
    ):
        pass
    assert tree(tmp_path) == {"folder": "", "folder/inner": ""}
