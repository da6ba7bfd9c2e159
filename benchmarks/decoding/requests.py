"""Requests for an engine in this process that is to be kept full."""

import itertools
import time
from collections.abc import Iterable, Iterator

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.engine import Engine
from attendant.server.engine.request import EngineRequest, Priority
from benchmarks.job import Sources


def engine_requests(sources: Sources, num_steps: Iterable[int], beam_size: int = 1) -> Iterator[EngineRequest]:
    """The sources in turn, again and again, each with the next number of steps, as long as there is one."""
    for key, (source, steps) in enumerate(zip(itertools.cycle(sources), num_steps)):
        options = DecodingOptions(beam_size=beam_size, max_length=steps - 1)
        yield EngineRequest(key, tuple(source), options, time.monotonic())


def fill(engine: Engine, requests: Iterator[EngineRequest], number: int) -> None:
    """Submits so many that this number runs or waits."""
    while engine.scheduler.num_running + engine.scheduler.num_waiting(Priority.INTERACTIVE) < number:
        engine.submit(next(requests))
