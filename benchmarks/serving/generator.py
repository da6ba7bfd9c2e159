"""The load generator, a process of its own."""

import asyncio
import base64
import itertools
from dataclasses import asdict
from pathlib import Path

from attendant.server.bench.load import Load, asked
from benchmarks.job import answer_questions


def generate(target: str, method: str, payloads: str) -> None:
    """Asks a server: each line of standard input is a load in JSON, each line of standard output what came of it.

    Args:
        payloads: a file of requests, one per line, in base64.
    """
    requests = itertools.cycle(map(base64.b64decode, Path(payloads).read_text(encoding="ascii").splitlines()))
    answer_questions(lambda load: asdict(asyncio.run(asked(target, method, requests, Load(**load)))))
