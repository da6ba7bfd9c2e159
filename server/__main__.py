"""The command `attendant serve`, or python -m attendant.server BUNDLE... : see --help."""

# ruff: noqa: PLC0415  # Importing the server's modules takes a while, during which Ctrl-C must end it with one line.

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from attendant.runtime.command import Command, exit_command, require, run_command

ENDING_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def command(name: str) -> Command:
    """Returns the command, as `attendant` runs it."""
    from attendant.server.config import config_parser

    return _Serve(config_parser(), _check)


class _Serve(Command):
    """Checks the options, and replaces the process by `python -m attendant.server`.

    gRPC reads how much it prints when it is imported, and the client, which runs this, has imported it.
    """

    def main(self, program: str, arguments: Sequence[str]) -> NoReturn:
        self.parser.prog = program
        _handle_signals()
        if status := run_command(program, lambda: self(arguments)):
            sys.exit(status)
        # `-m` would look for modules in the working directory first, where any file may have a module's name. Workers
        # inherit the variable.
        os.environ["PYTHONSAFEPATH"] = "1"
        # Until the new program has handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
        os.execv(sys.executable, [sys.executable, "-m", "attendant.server", *arguments])


def _check(parsed: argparse.Namespace) -> None:
    require("onnxruntime")
    from attendant.server.config import config_of

    config_of(parsed, os.environ)


def _handle_signals() -> None:
    """Handles signals until the server does, after it has been imported: it ends in order on SIGTERM.

    Otherwise SIGHUP, which reloads, would end it, and process 1 of a container would not get SIGTERM.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


def main(scheduler: type[Any] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status. See ServerConfig for `scheduler`."""
    _handle_signals()
    from attendant.server.config import config_parser

    return Command(config_parser(), partial(_serve, scheduler=scheduler))(sys.argv[1:]) or 0


def _serve(parsed: argparse.Namespace, scheduler: type[Any] | None) -> int:
    # Only the workers import it, in processes of their own.
    require("onnxruntime")
    import uvloop

    from attendant.server.app import serve
    from attendant.server.config import config_of, warn_of_unknown_variables
    from attendant.server.logs import configure_audit, configure_logging, log_python_errors

    config = config_of(parsed, os.environ)
    if scheduler is not None:
        config = replace(config, scheduler=scheduler)
    configure_logging(config.log_level, config.log_format, config.log_texts)
    configure_audit(config.audit_level, config.audit_format or config.log_format)
    log_python_errors()
    warn_of_unknown_variables(os.environ)
    return uvloop.run(serve(config))


if __name__ == "__main__":
    exit_command("attendant serve", main, "cpu")
