"""The load generator, a process of its own."""

import asyncio
import base64
import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attendant.server.bench.load import Load, run_load
from benchmarks.job import answer_questions

METHODS = {
    "bulk": "/attendant.v1.Seq2Seq/GenerateBatch",
    "bulk-lists": "/attendant.v1.Seq2Seq/GenerateBatches",
    "list": "/attendant.v1.Seq2Seq/GenerateMany",
    "stream": "/attendant.v1.Seq2Seq/GenerateStream",
}
"""By the kind of load; of other kinds each server has its own."""


def generate(target: str, method: str, requests: str) -> None:
    """Asks a server: each line of standard input is a load in JSON, each line of standard output what came of it.

    Args:
        method: the server's unary call.
        requests: a file of them, one per line, in base64.
    """
    payloads = itertools.cycle(map(base64.b64decode, Path(requests).read_text(encoding="ascii").splitlines()))

    def answer(question: dict[str, Any]) -> dict[str, object]:
        load = Load(**question)
        return asdict(asyncio.run(run_load(target, METHODS.get(load.kind, method), payloads, load)))

    answer_questions(answer)
