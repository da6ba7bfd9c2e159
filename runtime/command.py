"""How a command ends: the one place where exceptions become exit statuses."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from attendant.runtime.errors import UserError, VerificationFailed
from attendant.runtime.limited import anything_given_up

INTERRUPTED = 130


def run_command(name: str, main: Callable[[], int | None]) -> int:
    """Runs `main` and returns the exit status: 0 done, 1 verification failed, 2 the user's mistake, 130 Ctrl-C.

    Args:
        name: what the line on standard error begins with, e.g. "training".
        main: returns its own exit status, or None for 0.
    """
    try:
        return main() or 0
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except VerificationFailed as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not our failure. Standard output is replaced so that
        # the interpreter's own flush at exit does not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def exit_command(name: str, main: Callable[[], int | None]) -> NoReturn:
    """`run_command` as the end of a process.

    CPython ends a process by SIGINT, whatever its exit status, if a KeyboardInterrupt has ever passed through code that
    was compiled from a string, as tracing libraries do: after an interruption it is not left the choice. Nor is it
    where native code still runs that was given up: taking the process apart around it may crash.
    """
    status = run_command(name, main)
    if status == INTERRUPTED or anything_given_up():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
