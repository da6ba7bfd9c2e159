"""python -m server BUNDLE... : see --help."""

import asyncio
import os
import sys

from prometheus_client import disable_created_metrics

from runtime.command import exit_command
from server.app import serve
from server.config import parse_config
from server.logs import configure_logging


def main() -> int:
    config = parse_config(sys.argv[1:], os.environ)
    configure_logging(config.log_level, config.log_format)
    # A second series per counter and histogram that says when it began: nobody asks for it here.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    return asyncio.run(serve(config))


if __name__ == "__main__":
    exit_command("server", main)
