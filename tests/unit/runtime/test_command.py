"""Tests that commands end with a status and one line, even if Ctrl-C interrupts the import of libraries."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attendant.runtime.bundle.bundle import BundleRefused
from attendant.runtime.command import NO_MEMORY, CommandParser, run_command
from attendant.runtime.errors import UserError, VerificationFailed
from attendant.runtime.files import write_json
from tests.paths import ROOT

DENIED = f"Denied: give user {os.geteuid()} access to it and to its folders"
REFUSED = "the bundle x is refused; export or copy it again:"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (None, 0, ""),
        (UserError("port: 7 is taken"), 2, "name: port: 7 is taken\n"),
        (UserError("a\nname: forged\u202e\x85"), 2, "name: a\\nname: forged\\u202e\\u0085\n"),
        (VerificationFailed("refused", ["a", "b"]), 1, "name: refused\n  - a\n  - b\n"),
        (BundleRefused(Path("x"), ["a\n  - b"]), 2, f"name: {REFUSED}\n  - a\\n  - b\n"),
        (KeyboardInterrupt(), 130, "\nname: interrupted\n"),
        (MemoryError(), 2, f"name: {NO_MEMORY}\n"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 2, f"name: {NO_MEMORY}\n"),
        (PermissionError(errno.EACCES, "Denied", "x"), 2, f"name: x: can't be read or written: {DENIED}\n"),
        (OSError(errno.ENOENT, "No x"), 2, "name: No x: let TMPDIR name a folder that you may write to\n"),
    ],
)
def test_each_exception_has_its_status_and_message(
    error: BaseException | None, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        if error is not None:
            raise error

    assert run_command("name", main) == status
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("argument", ["", " ", "=3", "--verson=3"])
def test_an_unknown_argument_is_refused_in_one_line(argument: str) -> None:
    with pytest.raises(UserError, match=r"unrecognized arguments: .*(see name --help|did you mean --version\?)$"):
        CommandParser(prog="name").parse_args([argument])


def test_an_empty_path_is_refused() -> None:
    parser = CommandParser(prog="name")
    parser.add_argument("run", type=Path)
    with pytest.raises(UserError, match=r"^argument run: is empty, must be a path; see name --help$"):
        parser.parse_args([""])


@pytest.mark.parametrize(("kind", "value"), [(int, "x"), (int, "1.5"), (int, ""), (int, "9" * 5000), (float, "1,5")])
def test_a_value_that_is_no_number_is_refused_in_plain_words(kind: type[int] | type[float], value: str) -> None:
    parser = CommandParser(prog="name")
    parser.add_argument("--size", type=kind)
    must_be = "a whole number" if kind is int else "a number"
    with pytest.raises(UserError, match=rf"^argument --size: '.{{0,400}} is not {must_be}; see name --help$"):
        parser.parse_args([f"--size={value}"])


CLEANS_UP = """
import os, signal, sys
from runtime.command import exit_command, handle_ending_signals

def main():
    try:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    finally:
        print("cleaned up")

if "nohup" not in sys.argv:  # the tests may run under it themselves
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
handle_ending_signals()
exit_command("x", main)
"""


@pytest.mark.parametrize(
    ("number", "starter", "status"),
    [("SIGTERM", [], 130), ("SIGHUP", [], 130), ("SIGHUP", ["nohup"], 0)],
)
def test_a_command_cleans_up_when_its_terminal_closes_except_with_nohup(
    number: str, starter: list[str], status: int
) -> None:
    command = [*starter, sys.executable, "-c", CLEANS_UP, number, *starter]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (status, "cleaned up\n"), done.stderr


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command("name", lambda: 1 // 0)


IN_GENERATED_CODE = """
from runtime.command import exit_command

exit_command("x", lambda: exec("raise KeyboardInterrupt('stopped at step 7')"))
"""
AS_A_CAUSE = """
from runtime.command import exit_command

def main():
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as interruption:
        raise ImportError("initialization failed") from interruption

exit_command("x", main)
"""
IN_A_CONSTRUCTOR = """
from runtime.command import exit_command

class EventLoop:
    def __init__(self):
        raise KeyboardInterrupt  # as a signal may, at any line

    def __del__(self):
        print(self.handlers)  # that are set after that line

exit_command("x", EventLoop)
"""


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (IN_GENERATED_CODE, "stopped at step 7"),
        (AS_A_CAUSE, "interrupted"),
        (IN_A_CONSTRUCTOR, "interrupted"),
    ],
)
def test_an_interruption_at_any_place_is_one_line_and_status_130(program: str, line: str) -> None:
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (130, f"\nx: {line}\n")


def test_a_command_whose_standard_streams_are_closed_goes_on() -> None:
    program = (
        "import os, sys; from attendant.runtime.command import exit_command\n"
        "exit_command('name', lambda: print('done', file=sys.stderr) or int(os.fstat(2).st_rdev == 0))"
    )
    closed = ["bash", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program]
    assert subprocess.run(closed, cwd=ROOT, check=False, timeout=60).returncode == 0


def test_a_command_ends_while_abandoned_work_captures_standard_error() -> None:
    """Covers a server that is ended while it opens a bundle: the thread that opens it goes on."""
    program = (
        "import threading; from attendant.runtime.command import exit_command\n"
        "from attendant.runtime.process import quiet_stderr\n"
        "captures = threading.Event()\n"
        "def open_bundle():\n"
        "    with quiet_stderr(): captures.set(); threading.Event().wait()\n"
        "def main():\n"
        "    threading.Thread(target=open_bundle, daemon=True).start()\n"
        "    captures.wait()\n"
        "exit_command('x', main)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, timeout=60).returncode == 0


def test_a_character_that_the_output_lacks_is_escaped() -> None:
    program = "from attendant.runtime.command import exit_command; exit_command('x', lambda: print('a → b'))"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert (run.returncode, run.stdout, run.stderr) == (0, "a \\u2192 b\n", "")


def test_a_name_that_is_not_utf_8_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = os.fsdecode(b"caf\xe9.tsv")
    assert run_command("x", lambda: write_json(tmp_path / "record.json", {"data": data})) == 2
    line = capsys.readouterr().err
    assert "caf\\udce9.tsv" in line and line.count("\n") == 1 and not list(tmp_path.iterdir())


INTERRUPTED_IMPORT = """
import runpy, signal, sys

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {library!r}:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                if {name!r} == "attendant":
                    raise ImportError("as native code that imports does") from None
                raise

sys.meta_path.insert(0, Interrupted())
sys.argv = {argv!r}
{run}
"""

ATTENDANT = "from attendant_client.command import main; sys.exit(main())"
MODULE = "runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"


@pytest.mark.parametrize(
    ("library", "argv", "run", "name"),
    [
        ("grpc", ["attendant", "health"], ATTENDANT, "attendant"),
        ("torch", ["attendant", "train", "copy"], ATTENDANT, "attendant"),
        ("onnxruntime", ["attendant", "generate", "--bundle", "models/g2p-en", "a"], ATTENDANT, "attendant"),
        ("grpc", ["server", "models/g2p-en"], MODULE.format(name="attendant.server"), "attendant serve"),
        ("ray", ["cluster", "serve", "models/g2p-en"], MODULE.format(name="attendant.server.cluster"), "cluster"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_an_interruption_while_libraries_are_imported_is_one_line(
    library: str, argv: list[str], run: str, name: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT.format(library=library, argv=argv, run=run, name=name)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"\n{name}: interrupted\n")
