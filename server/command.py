"""`attendant serve`: the server, as a process of its own."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from attendant.runtime.command import Command, require, run_command
from attendant.server.config import config_of, config_parser


class _Serve(Command):
    """Goes on as `python -m attendant.server`, once the options hold.

    gRPC reads when it is imported how much it prints, and the client, which runs this, has imported it.
    """

    def main(self, program: str, arguments: Sequence[str]) -> NoReturn:
        self.parser.prog = program
        if status := run_command(program, lambda: self(arguments)):
            sys.exit(status)
        os.execv(sys.executable, [sys.executable, "-m", "attendant.server", *arguments])


def command(name: str) -> Command:
    """The one command that there is."""
    return _Serve(config_parser(), _check)


def _check(parsed: argparse.Namespace) -> None:
    require("onnxruntime")
    config_of(parsed, os.environ)
