"""python -m server BUNDLE... : see `--help`."""

import asyncio
import sys

from runtime.command import run_command
from server.config import parse_config
from server.lifecycle import Server, load_models
from server.logs import set_up_logging


def main() -> int:
    config = parse_config(sys.argv[1:])
    set_up_logging(config.log_level, config.log_format)
    loaded = load_models(config)

    async def serve() -> int:
        return await Server(config, loaded).run()

    return asyncio.run(serve())


if __name__ == "__main__":
    sys.exit(run_command("server", main))
