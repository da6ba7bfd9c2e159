"""python -m server BUNDLE... : see --help."""

import os
import sys
from dataclasses import replace

import uvloop

from attendant.runtime.command import exit_command
from attendant.server.app import serve
from attendant.server.config import parse_config
from attendant.server.engine.queueing.scheduler import Scheduler
from attendant.server.observability.logs import configure_logging, log_what_python_prints
from attendant.server.observability.texts import log_texts


def main(scheduler: type[Scheduler] = Scheduler) -> int:
    """Serves until it is told to end; returns the exit status. See ServerConfig for `scheduler`."""
    config = replace(parse_config(sys.argv[1:], os.environ), scheduler=scheduler)
    configure_logging(config.log_level, config.log_format)
    log_what_python_prints()
    log_texts(config.log_texts == "on")
    return uvloop.run(serve(config))


if __name__ == "__main__":
    exit_command("server", main)
