"""python -m server BUNDLE... : see --help."""

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from attendant.runtime.command import Command, exit_command, require

if TYPE_CHECKING:
    from attendant.server.engine.scheduler import Scheduler

# The server's modules are imported within these functions: that takes a while, and Ctrl-C must end it with one line.


def main(scheduler: "type[Scheduler] | None" = None) -> int:
    """Serves until it is told to end; returns the exit status. See ServerConfig for `scheduler`."""
    from attendant.server.config import config_parser  # noqa: PLC0415

    return Command(config_parser(), partial(_serve, scheduler=scheduler))(sys.argv[1:]) or 0


def _serve(parsed: argparse.Namespace, scheduler: "type[Scheduler] | None") -> int:
    # Only the workers import it, in processes of their own.
    require("onnxruntime")
    import uvloop  # noqa: PLC0415

    from attendant.server.app import serve  # noqa: PLC0415
    from attendant.server.config import config_of  # noqa: PLC0415
    from attendant.server.grpc.request_context import log_requests  # noqa: PLC0415
    from attendant.server.logs import (  # noqa: PLC0415
        configure_audit,
        configure_logging,
        log_texts,
        log_what_python_prints,
    )

    config = config_of(parsed, os.environ)
    if scheduler is not None:
        config = replace(config, scheduler=scheduler)
    configure_logging(config.log_level, config.log_format)
    configure_audit(config.audit_level, config.audit_format or config.log_format)
    log_what_python_prints()
    log_texts(config.log_texts == "on")
    log_requests(config.log_requests == "on")
    return uvloop.run(serve(config))


if __name__ == "__main__":
    exit_command("server", main, "cpu")
