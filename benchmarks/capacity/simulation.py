"""A server as a discrete-event simulation: its event loop and its engines share the host's processors.

The server's process goes before its workers, as it does in earnest (os.nice). What decides in the real server decides
here: `Dispatcher` gives requests to workers, each worker's `Scheduler` admits them, `alike` parts those that are
encoded together, `Outbox` says when answers leave. Only time is simulated, by measured costs.
"""

import itertools
import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import alike
from attendant.runtime.stepper import padded_width
from attendant.server.bench.load import Load
from attendant.server.engine.pool import Dispatcher, Given
from attendant.server.engine.request import EngineRequest, Priority, RequestStats, Result
from attendant.server.engine.scheduler import Budget, Scheduler
from attendant.server.engine.worker import Outbox
from benchmarks.capacity.costs import Costs, between

Events = Generator[simpy.Event, Any, None]
Lengths = Sequence[tuple[int, int]]
"""Source positions and decoder steps of requests."""

MAX_SOURCE_POSITIONS = 32768
LEAST_SECONDS = 1e-9
"""Less than that is what rounding has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A server and its host.

    Attributes:
        num_cores: of the host, which all processes share.
        beam_size: of all requests, each of which has so many rows.
        generator_here: the load generator takes its processor time from the same host.
    """

    num_workers: int = 1
    num_cores: int = 2
    max_rows: int = 256
    beam_size: int = 1
    generator_here: bool = False


@dataclass(slots=True)
class Simulated:
    """What came of a load.

    Attributes:
        latencies: in seconds, of what was asked after the warm-up.
        seconds: from the end of the warm-up to the last answer.
    """

    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def answered_per_second(self) -> float:
        return len(self.latencies) / self.seconds

    def latency(self, share: float) -> float:
        """A quantile of the latencies."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Processors:
    """The cores of a host: each thread that works has one; workers share evenly what threads leave."""

    def __init__(self, env: simpy.Environment, num_cores: int) -> None:
        self._env, self._num_cores = env, num_cores
        self._num_threads = self._num_workers = 0
        # In cores, of each that works.
        self._speeds = {True: 1.0, False: 1.0}
        self._changed = env.event()

    def work(self, seconds: float, *, is_worker: bool = False) -> Events:
        """So much processor time; longer by the clock where others work too."""
        self._count(1, is_worker)
        while seconds > LEAST_SECONDS:
            began, speed = self._env.now, self._speeds[is_worker]
            done = self._env.timeout(seconds / speed) if speed else self._env.event()
            yield done | self._changed
            seconds -= speed * (self._env.now - began)
        self._count(-1, is_worker)

    def _count(self, number: int, is_worker: bool) -> None:
        if is_worker:
            self._num_workers += number
        else:
            self._num_threads += number
        left = max(0, self._num_cores - self._num_threads)
        speeds = {
            True: min(1.0, left / max(1, self._num_workers)),
            False: min(1.0, self._num_cores / max(1, self._num_threads)),
        }
        if speeds != self._speeds:
            changed, self._changed, self._speeds = self._changed, self._env.event(), speeds
            changed.succeed()


class SimulatedServer:
    """One server: a front, which is one thread, and engines."""

    def __init__(self, env: simpy.Environment, costs: Costs, setting: Setting) -> None:
        self._env, self._costs, self._setting = env, costs, setting
        self._processors = Processors(env, setting.num_cores)
        self._front = simpy.Resource(env)
        self._generator = simpy.Resource(env)
        self._slowdown = between(costs.beside, setting.num_workers)
        self._beside_step = between(costs.round_seconds, setting.num_workers)
        self._keys = itertools.count()
        self._dispatcher = Dispatcher(setting.num_workers, setting.max_rows)
        self._inboxes: list[list[EngineRequest]] = [[] for _ in range(setting.num_workers)]
        self._wakers = [env.event() for _ in range(setting.num_workers)]
        self._answers: dict[int, simpy.Event] = {}
        self._steps: dict[int, int] = {}
        for number in range(setting.num_workers):
            self._dispatcher.open(number)
            env.process(self._worker(number))

    def ask(self, num_positions: int, num_steps: int) -> Events:
        """A call, from the client's hands to its hands."""
        half = self._costs.call_seconds / 2
        generator = self._costs.generator_seconds / 2 if self._setting.generator_here else 0.0
        yield from self._on_thread(self._generator, generator)
        yield from self._on_thread(self._front, half)
        key = next(self._keys)
        answer = self._answers[key] = self._env.event()
        self._steps[key] = num_steps
        options = DecodingOptions(beam_size=self._setting.beam_size, max_length=num_steps)
        source_ids = tuple(range(num_positions))
        request = EngineRequest(key, source_ids, options, self._env.now, expected_steps=num_steps)
        self._send(self._dispatcher.add(request))
        yield answer
        yield from self._on_thread(self._front, half)
        yield from self._on_thread(self._generator, generator)

    def _on_thread(self, thread: simpy.Resource, seconds: float) -> Events:
        """Work of a single thread."""
        if not seconds:
            return
        with thread.request() as turn:
            yield turn
            yield from self._processors.work(seconds)

    def _send(self, given: Given) -> None:
        for worker, request in given:
            self._inboxes[worker].append(request)
            if not self._wakers[worker].triggered:
                self._wakers[worker].succeed()

    def _worker(self, number: int) -> Events:
        setting = self._setting
        scheduler = Scheduler(Budget(max_rows=setting.max_rows, max_source_positions=MAX_SOURCE_POSITIONS))
        running: dict[int, EngineRequest] = {}
        held: dict[int, EngineRequest] = {}
        outbox = Outbox()
        while True:
            if not scheduler.has_work and not self._inboxes[number]:
                self._wakers[number] = self._env.event()
                yield self._wakers[number]
            for request in self._inboxes[number]:
                scheduler.add(request)
            self._inboxes[number].clear()
            admitted = scheduler.admit(Priority.INTERACTIVE)
            running |= {request.key: request for request in admitted}
            ended = self._advance(running)
            seconds = self._round_seconds(running, admitted, ended)
            began = self._env.now
            yield from self._processors.work(seconds, is_worker=True)
            for request in ended:
                held[request.key] = running.pop(request.key)
                scheduler.remove(request.key)
            now = self._env.now
            outbox.add([(request.key, _result(now - request.submitted)) for request in ended], [], now)
            if outbox.is_due(len(running), now, now - began) or not scheduler.has_work:
                self._tell(number, [held.pop(key) for key, _ in outbox.take()[0]])

    def _tell(self, number: int, ended: list[EngineRequest]) -> None:
        """A worker's report has come."""
        for request in ended:
            self._answers.pop(request.key).succeed()
        if ended:
            self._send(self._dispatcher.ended(number, ended))

    def _advance(self, running: dict[int, EngineRequest]) -> list[EngineRequest]:
        """Everybody has a step less to go; who has none ends with this round."""
        for key in running:
            self._steps[key] -= 1
        ended = [request for key, request in running.items() if self._steps[key] <= 0]
        for request in ended:
            del self._steps[request.key]
        return ended

    def _round_seconds(
        self, running: dict[int, EngineRequest], admitted: list[EngineRequest], ended: list[EngineRequest]
    ) -> float:
        costs, beam_size = self._costs, self._setting.beam_size
        num_rows = beam_size * len(running)
        width = max(padded_width(len(request.source_ids)) for request in running.values())
        seconds = costs.step.at(num_rows, width)
        lengths = [len(request.source_ids) for request in admitted]
        for group in alike(lengths) if lengths else []:
            widest = padded_width(max(lengths[place] for place in group))
            seconds += costs.encode.at(len(group), widest)
        changes = bool(ended and len(ended) < len(running)) + bool(admitted and len(admitted) < len(running))
        seconds += changes * costs.change.at(num_rows, width)
        return self._beside_step + self._slowdown * seconds


def _result(total: float) -> Result:
    """Of a request that took so many seconds, with as much of it as an outbox looks at."""
    return Result((), RequestStats(0.0, 0.0, total, total, total, 1, 1.0, 0.0))


def simulate(costs: Costs, setting: Setting, lengths: Lengths, load: Load, *, warm_up: float = 0.0) -> Simulated:
    """A server under a load, "closed" or "open", of single calls; all that is asked is answered.

    Args:
        warm_up: seconds of the same load before those that count.
    """
    env, found = simpy.Environment(), Simulated()
    server = SimulatedServer(env, costs, setting)
    work, end = _shuffled(lengths, load.seed), warm_up + load.seconds

    def ask() -> Events:
        asked = env.now
        yield from server.ask(*next(work))
        if asked >= warm_up:
            found.latencies.append(env.now - asked)
            found.seconds = env.now - warm_up

    def arrivals() -> Events:
        generator = random.Random(load.seed)
        while env.now < end:
            yield env.timeout(generator.expovariate(load.rate))
            env.process(ask())

    def client() -> Events:
        while env.now < end:
            yield from ask()

    if load.kind == "open":
        env.process(arrivals())
    else:
        for _ in range(load.num_clients):
            env.process(client())
    env.run()
    return found


def _shuffled(lengths: Lengths, seed: int) -> Iterator[tuple[int, int]]:
    """Without end, in an order of its own for each seed."""
    generator, order = random.Random(seed), list(lengths)
    while True:
        generator.shuffle(order)
        yield from order
