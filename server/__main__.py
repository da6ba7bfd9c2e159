"""python -m server BUNDLE... : see --help."""

import os
import sys

import uvloop

from attendant.runtime.command import exit_command
from attendant.server.app import serve
from attendant.server.config import parse_config
from attendant.server.observability.logs import configure_logging


def main() -> int:
    config = parse_config(sys.argv[1:], os.environ)
    configure_logging(config.log_level, config.log_format)
    return uvloop.run(serve(config))


if __name__ == "__main__":
    exit_command("server", main)
