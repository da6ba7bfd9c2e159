"""python -m server BUNDLE... : see --help."""

import argparse
import os
import sys
from dataclasses import replace
from functools import partial

import uvloop

from attendant.runtime.command import Command, exit_command
from attendant.server.app import serve
from attendant.server.config import config_of, config_parser
from attendant.server.engine.queueing.scheduler import Scheduler
from attendant.server.observability.logs import configure_logging, log_what_python_prints
from attendant.server.observability.texts import log_texts
from attendant.server.servicers.request_context import log_requests


def main(scheduler: type[Scheduler] = Scheduler) -> int:
    """Serves until it is told to end; returns the exit status. See ServerConfig for `scheduler`."""
    return Command(config_parser(), partial(_serve, scheduler=scheduler))(sys.argv[1:]) or 0


def _serve(parsed: argparse.Namespace, scheduler: type[Scheduler]) -> int:
    config = replace(config_of(parsed, os.environ), scheduler=scheduler)
    configure_logging(config.log_level, config.log_format)
    log_what_python_prints()
    log_texts(config.log_texts == "on")
    log_requests(config.log_requests == "on")
    return uvloop.run(serve(config))


if __name__ == "__main__":
    exit_command("server", main)
