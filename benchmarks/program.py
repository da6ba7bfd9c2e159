"""A function that runs as a program of its own: python -m benchmarks.program MODULE:FUNCTION ARGUMENTS.

Only the standard library, and no newer Python than 3.9's: peers are run by it in their own environments.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def program(function: str, python: Path | str = sys.executable, **arguments: object) -> list[str]:
    """The command that calls a function.

    Args:
        function: its module, without the leading `benchmarks.`, and its name, such as "peers.triton:serve".
        python: the interpreter of its environment.
        arguments: by name; of types that JSON has.
    """
    return [str(python), "-m", "benchmarks.program", f"benchmarks.{function}", json.dumps(arguments)]


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))
