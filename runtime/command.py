"""Commands and their ends: the one place where exceptions become exit statuses."""

import argparse
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from attendant.runtime.errors import UserError, VerificationFailed, shown
from attendant.runtime.files import FULL, UNWRITABLE, CantWrite, reading_error
from attendant.runtime.process import has_abandoned_work, open_standard_streams
from attendant_client.command import INTERRUPTED, path_argument
from attendant_client.command import ended_by_interrupts as ended_by_interrupts  # noqa: PLC0414  # Commands import it from here.
from attendant_client.command import give_up_output as give_up_output  # noqa: PLC0414  # The server imports it from here.
from attendant_client.command import set_variables as set_variables  # noqa: PLC0414  # The server imports it from here.
from attendant_client.command import suggestion as suggestion  # noqa: PLC0414  # Training imports it from here.
from attendant_client.version import VERSION

NO_MEMORY = "there is too little memory: end other programs, allow this one more, or give it less work"


class CommandParser(argparse.ArgumentParser):
    """The options of a command. Raises UserError for an invalid one, where argparse would print its usage and exit."""

    def __init__(self, **options: Any) -> None:
        # An abbreviation of one option would become another option's when that is added.
        super().__init__(allow_abbrev=False, **options)
        self.register("type", Path, path_argument)
        self.register("type", int, partial(_number, int, "a whole number"))
        self.register("type", float, partial(_number, float, "a number"))
        self.add_argument("--version", action="version", version=f"attendant {VERSION}")

    def error(self, message: str) -> NoReturn:
        _, _, unknown = message.partition("unrecognized arguments: ")
        words = unknown.partition("=")[0].split()
        near = suggestion(words[0], self._option_string_actions) if words else ""
        raise UserError(f"{message}{near or f'; see {self.prog} --help'}")


def _number(kind: type[int] | type[float], expected: str, text: str) -> float:
    """Returns an argument as a number. Raises ArgumentTypeError: it is none."""
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not {expected}") from None


@dataclass(frozen=True, slots=True)
class Command:
    """A command's options and its function, for `attendant NAME` and `python -m ...` alike."""

    parser: CommandParser
    run: Callable[[argparse.Namespace], int | None]

    def __call__(self, arguments: Sequence[str]) -> int | None:
        """Parses the options and runs. Raises SystemExit after --help and --version; UserError for a bad option."""
        return self.run(self.parser.parse_args(arguments))

    def main(self, program: str, arguments: Sequence[str]) -> NoReturn:
        """Runs as `program` and ends the process."""
        handle_ending_signals()
        self.parser.prog = program
        exit_command(program, lambda: self(arguments))


def handle_ending_signals() -> None:
    """Lets SIGTERM, and SIGHUP of a closed terminal, clean up as Ctrl-C does. Under `nohup` SIGHUP stays ignored."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)


def require(package: str, extras: str = "") -> None:
    """Raises an error if a package is missing, without importing it.

    Args:
        extras: see `run_command`; if empty, the caller has them.

    Raises:
        UserError: the package is not installed; the message has the command that installs it.
        ModuleNotFoundError: the same, if `extras` is empty.
    """
    if find_spec(package) is None:
        missing = ModuleNotFoundError(f"No module named {package!r}", name=package)
        raise UserError(needed(missing, extras)) if extras else missing


def run_command(name: str, main: Callable[[], int | None], extras: str = "") -> int:
    """Runs `main` and returns the exit status: 0 done, 1 verification failed, 2 the user's mistake, 130 Ctrl-C.

    Args:
        name: begins the line on standard error, e.g. "training".
        main: returns its own exit status, or None for 0.
        extras: of the distribution attendant-seq2seq, with the packages that `main` imports. If empty, the error about
            a missing package is raised to the caller, which has the extras.
    """
    try:
        status = main() or 0
        sys.stdout.flush()
        return status
    except (UserError, UnicodeEncodeError, ModuleNotFoundError) as error:
        _say(f"{name}: {_mistake(error, extras)}")
        return 2
    except VerificationFailed as error:
        _say(f"{name}: {error}")
        return 1
    except KeyboardInterrupt as interruption:  # a training's names the step that it saved
        _say(f"\n{name}: {str(interruption) or 'interrupted'}")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not our failure.
        give_up_output()
        return 0
    except (MemoryError, OSError) as error:
        if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
            _say(f"{name}: {NO_MEMORY}")
        elif error.errno == errno.ENOENT and error.filename is None:  # tempfile's
            _say(f"{name}: {error.strerror}: let TMPDIR name a folder that you may write to")
        elif error.errno in UNWRITABLE - FULL and error.filename is not None:
            _say(f"{name}: {error.filename}: can't be read or written: {reading_error(error)}")
        elif error.errno in UNWRITABLE:
            _say(f"{name}: {CantWrite(error.filename or 'standard output', error.errno)}")
            give_up_output()
        else:
            raise
        return 2


def _mistake(error: UserError | UnicodeEncodeError | ModuleNotFoundError, extras: str) -> str:
    if isinstance(error, ModuleNotFoundError):
        return needed(error, extras)
    if isinstance(error, UserError):
        return str(error)
    # Linux takes any bytes as a name; recipes, records and libraries have UTF-8.
    part = error.object[max(0, error.start - 40) : error.end + 40]
    return f"{shown(part)} is not UTF-8: rename the file or folder that is named so"


def needed(missing: ModuleNotFoundError, extras: str) -> str:
    """Returns a message with the missing package and its installation. Raises the error again if no extra has it."""
    if not extras or missing.name is None or missing.name.startswith("attendant"):
        raise missing
    return f"{missing.name} is not installed: pip install 'attendant-seq2seq[{extras}]'"


def _say(line: str) -> None:
    with suppress(OSError):  # its disk may be the full one
        print(line, file=sys.stderr, flush=True)


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    """Ignores a library's thread that could not write: its next call raises the error, which is reported."""
    if not (isinstance(failure.exc_value, OSError) and failure.exc_value.errno in UNWRITABLE):
        threading.__excepthook__(failure)


def _open_python_streams() -> None:
    """Opens closed standard streams, and gives Python their objects."""
    open_standard_streams()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that its encoding lacks is shown escaped
            stream.reconfigure(errors="backslashreplace")


def _is_interruption(error: BaseException | None) -> bool:
    """Returns True for KeyboardInterrupt, and for an error that it caused, e.g. an ImportError of onnxruntime."""
    while isinstance(error, Exception):
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return isinstance(error, KeyboardInterrupt)


def exit_command(name: str, main: Callable[[], int | None], extras: str = "") -> NoReturn:
    """Runs a command as `run_command` and ends the process.

    CPython ends a process by SIGINT, with any exit status, if a KeyboardInterrupt has ever passed through code that was
    compiled from a string, as tracing libraries do. So the process ends by os._exit after an interruption, and also if
    abandoned native code still runs: a normal exit may crash then.
    """
    threading.excepthook = _thread_failed
    _open_python_streams()
    # Half-made objects of an interruption, e.g. an event loop, print a traceback when they are freed. So the
    # interruption's frames are kept until the process ends.
    interruptions: list[BaseException] = []

    def interruptible() -> int | None:
        try:
            return main()
        except BaseException as error:
            if not _is_interruption(error):
                raise
            interruptions.append(error)
            raise KeyboardInterrupt(*(error.args if isinstance(error, KeyboardInterrupt) else ())) from None

    status = run_command(name, interruptible, extras)
    # The work is done. An interruption of the interpreter's end would make native code abort.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # a full disk must not change the exit status
            give_up_output(stream)
    if status == INTERRUPTED or has_abandoned_work():
        os._exit(status)
    sys.exit(status)
