"""The load generator, a process of its own: python -m benchmarks.serving.generator TARGET METHOD PAYLOADS.

Each line of standard input is a load in JSON, each line of standard output what came of it.
"""

import asyncio
import base64
import itertools
import sys
from dataclasses import asdict
from pathlib import Path

from attendant.server.bench.load import Load, asked
from benchmarks.job import answer_questions


def main(target: str, method: str, path: str) -> None:
    payloads = itertools.cycle(map(base64.b64decode, Path(path).read_text(encoding="ascii").splitlines()))
    answer_questions(lambda load: asdict(asyncio.run(asked(target, method, payloads, Load(**load)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
