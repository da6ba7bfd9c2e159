"""How a command ends: the one place where exceptions become exit statuses."""

import os
import sys
from collections.abc import Callable

from runtime.errors import UserError, VerificationFailed


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
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not our failure. Standard output is replaced so that
        # the interpreter's own flush at exit does not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
