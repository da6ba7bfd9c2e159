"""The command `attendant`: calls a server, or a bundle, from the terminal and in pipelines; and all other commands."""

import argparse
import io
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TextIO

INTERRUPTED = 130

# gRPC's own notes about connections are not for the users of a command, and contain text of the other end. It reads
# this once, when `grpc` is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0 done, 1 no answer, 2 the user's mistake.

    Ctrl-C ends the process with 130.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, as `2>&-` does
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123  # until the process ends
        elif isinstance(stream, io.TextIOWrapper):
            # A symbol that the terminal's encoding lacks is shown escaped rather than ending the command.
            stream.reconfigure(errors="backslashreplace")
    try:
        return _ended(arguments)
    finally:
        try:
            sys.stderr.flush()
        except OSError:  # a full disk must not change the exit status
            give_up_output(sys.stderr)


def _ended(arguments: Sequence[str] | None) -> int:
    """Runs the command and returns its exit status."""
    try:
        # Flushed here, because an error of the interpreter's own flush at its end would be a traceback.
        try:
            status = _run(sys.argv[1:] if arguments is None else arguments)
        except SystemExit:  # after --help
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        with suppress(OSError):
            sys.stdout.flush()
        with suppress(OSError):
            print("\nattendant: interrupted", file=sys.stderr, flush=True)
        # At once: an unfinished object, such as an event loop, would print a traceback when it is freed.
        os._exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not our failure.
        give_up_output()
        return 0
    except OSError as error:
        with suppress(OSError):
            place = error.filename or "standard input or output"
            line = f"{place}: {error.strerror or type(error).__name__}"  # e.g. TimeoutError() has only its class
            if error.errno is None and error.args:  # a library's own message
                line = str(error)
            print(f"attendant: {line}", file=sys.stderr)
        give_up_output()
        return 1


def give_up_output(stream: TextIO | None = None) -> None:
    """Replaces a stream's file, by default standard output's: the interpreter's own flush at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())


@contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """Lets Ctrl-C end the process at once, with a line: for imports, which take a while.

    Native code that imports turns a KeyboardInterrupt into other errors, e.g. numpy's into an ImportError.
    """

    def end(*_: object) -> None:
        with suppress(OSError):
            os.write(2, b"\nattendant: interrupted\n")
        os._exit(INTERRUPTED)

    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def suggestion(word: str, choices: Iterable[str], prefix: str = "") -> str:
    """Returns the end of a message about a word that begins or resembles one of the choices; else an empty string.

    Args:
        prefix: is shown before the choice.
    """
    choices = list(choices)
    near = [choice for choice in choices if choice.startswith(word)] or get_close_matches(word, choices, n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def path_argument(name: str) -> Path:
    """Returns an argument as a path. An empty one, as of an unset variable of a shell, would be the working directory.

    Raises:
        argparse.ArgumentTypeError: it is empty.
    """
    if not name:
        raise argparse.ArgumentTypeError("is empty, must be a path")
    return Path(name)


def set_variables(*names: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the end of a message: which of these options have a variable of the environment that is set."""
    variables = [variable for name in names if environment.get(variable := f"ATTENDANT_{name.upper()}")]
    return f"; set in the environment: {', '.join(variables)}" if variables else ""


def _run(arguments: Sequence[str]) -> int:
    with ended_by_interrupts():
        import asyncio  # noqa: PLC0415

        from attendant_client.command.parser import FURTHER, parse, run_further  # noqa: PLC0415
        from attendant_client.command.rendering import explain, status_of  # noqa: PLC0415
        from attendant_client.errors import AttendantError  # noqa: PLC0415

    if arguments and arguments[0] in FURTHER:
        return run_further(arguments[0], arguments[1:])
    options = parse(arguments)
    try:
        status: int = asyncio.run(options.run(options))
        return status
    except AttendantError as error:
        print(f"attendant: {explain(error, options)}", file=sys.stderr)
        return status_of(error)
