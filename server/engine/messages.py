"""The values that go into the engine and come out of it, and how they travel between the server and its workers.

They are named tuples, because they are sent to worker processes and back: pickling a frozen dataclass takes several
times as long. Pickling also looks up each class in its module and calls into Python for each object that is not a tuple
of plain values. So messages are sent as such tuples. Most requests share their decoding options, an object of many
fields: each is pickled and read once. Unpickling is safe here, because both ends of the socket are processes of ours.

Keys of the requests that a worker is computing are in memory that outlives its crash (`FlightRecord`).
"""

import asyncio
import logging
import mmap
import os
import pickle
import socket
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis, Progress
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.decoding.trace import Trace
from attendant.runtime.errors import UserError
from attendant.runtime.requests import ReadRequest
from attendant.runtime.spans import joined
from attendant.server.errors import AttendantError, OutOfTime

log = logging.getLogger(__name__)

MIN_RETRY_SECONDS = 0.05


class Priority(IntEnum):
    """Priority of a request. Each has a queue and a running batch of its own.

    Callers wait for interactive answers. Heavy requests are interactive ones of a client that has many rows in flight;
    they share the engine's time with the others by clients, not by requests. Bulk work takes the remaining time.
    """

    INTERACTIVE = 0
    HEAVY = 1
    BULK = 2


class EngineRequest(NamedTuple):
    """A source and its decoding options.

    Attributes:
        key: unique within the engine's life.
        source_ids: as the encoder takes them.
        submitted: time of submission, on the engine's clock.
        deadline: time after which the answer is worthless, on the same clock. If None, there is no deadline.
        client: name of the client; clients share the engine.
        expected_steps: expected decoder steps.
        start_by: estimated time by which it must be admitted to be answered before its deadline, or None.
        streams: whether its caller gets tokens as soon as they are certain.
    """

    key: int
    source_ids: tuple[int, ...]
    options: DecodingOptions
    submitted: float
    deadline: float | None = None
    priority: Priority = Priority.INTERACTIVE
    client: str = ""
    expected_steps: float = 1.0
    start_by: float | None = None
    streams: bool = False

    @property
    def max_rows(self) -> int:
        """Largest number of rows, reserved from admission to the end."""
        return self.options.max_rows

    @property
    def work(self) -> float:
        """Expected rows x steps."""
        return self.options.max_rows * self.expected_steps


def out_of_time(request: EngineRequest, now: float) -> OutOfTime:
    """Returns the error for a request that waited too long: it may come again after as long as it has waited."""
    return OutOfTime(retry_seconds=max(MIN_RETRY_SECONDS, now - request.submitted))


class BulkRoom(NamedTuple):
    """Limits of an engine's bulk work.

    Attributes:
        max_rows: its live hypotheses.
        is_alone: whether the server has had no other requests for a while; then calls into the model may take longer.
    """

    max_rows: int
    is_alone: bool


class RequestStats(NamedTuple):
    """Timings of a request, in seconds.

    Attributes:
        queue: from submission to admission.
        encode: in the encoder, with the requests encoded together with it.
        decode: from the end of encoding to the last step.
        first_token: from submission to the end of the first step.
        total: from submission to the answer.
        steps: decoder steps it took part in.
        mean_batch_rows: mean rows of those steps, its own included.
        submitted: time of submission, on the engine's clock.
    """

    queue: float
    encode: float
    decode: float
    first_token: float
    total: float
    steps: int
    mean_batch_rows: float
    submitted: float


class Result(NamedTuple):
    """An answer: its hypotheses, best first, and the course of the search if it was requested."""

    hypotheses: tuple[Hypothesis, ...]
    stats: RequestStats
    trace: Trace | None = None


def joined_result(request: ReadRequest, units: Sequence[Result]) -> Result:
    """Returns the result of a request, given those of its units; the statistics are of the one that ended last."""
    if not request.parts:
        return units[0]
    options = request.options
    hypotheses = joined(
        [unit.hypotheses for unit in units],
        options.num_hypotheses,
        draws=options.sampling is not None,
        attention=request.attention,
    )
    return Result(hypotheses, max((unit.stats for unit in units), key=lambda stats: stats.total))


Outcome = Result | AttendantError
"""The end of a request: an answer, or one of the errors that its caller may see."""

Outcomes = list[tuple[int, Outcome]]
"""Outcomes by the requests' keys."""

Updates = list[tuple[int, Progress | Outcome]]
"""Updates for callers, by the requests' keys: outcomes, and the progress of requests that stream."""


class StepStats(NamedTuple):
    """Statistics of one round of the engine, for metrics.

    Attributes:
        priority: of the round.
        num_rows: rows stepped; 0 if there was nothing to step.
        num_encoded: requests that joined.
        cancelled_rows: rows freed because their caller has gone, or their deadline has passed.
        useful_cells, computed_cells: attention cells of valid positions, and all that were computed.
        phase_seconds: seconds of each phase that happened: admit, encode, and those of
            runtime.decoding.batch.StepReport.
    """

    priority: Priority
    num_rows: int
    num_encoded: int
    cancelled_rows: int
    useful_cells: int
    computed_cells: int
    phase_seconds: Mapping[str, float]


class StepResult(NamedTuple):
    """Result of one round: its statistics, the outcomes of requests that ended, the progress of those that stream."""

    stats: StepStats
    outcomes: Outcomes
    progress: list[tuple[int, Progress]]


LENGTH: Final = struct.Struct("<I")
RECEIVED_BYTES: Final = 1 << 16

MAX_CACHED_OPTIONS: Final = 256
MAX_CACHED_BYTES: Final = 1024  # Pickled options without a prefix take less.
FINISH_REASONS: Final = {reason.value: reason for reason in FinishReason}
PRIORITIES: Final = tuple(Priority)  # By their values. Looking a value up in its class is a call into Python, too.


class Ready(NamedTuple):
    """A worker's first message: it has loaded its bundle, and checked it on this host. Otherwise it sends a UserError.

    Attributes:
        version: of the bundle that it found.
        precision: of the graphs that it runs.
        warm_up_size, warm_up_seconds: the work of the first calls, as `size_of` measures it, and how long they took.
    """

    version: str
    precision: Precision
    warm_up_size: int
    warm_up_seconds: float


@dataclass(slots=True)
class Commands:
    """The server's commands to a worker; `bulk` is None if the room for bulk work stays as it is."""

    requests: list[EngineRequest] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    bulk: BulkRoom | None = None

    def __reduce__(self) -> tuple[Callable[..., "Commands"], tuple[Any, ...]]:
        packed = [
            (key, ids, _pickled(options), submitted, deadline, int(priority), *rest)
            for key, ids, options, submitted, deadline, priority, *rest in self.requests
        ]
        return _commands, (packed, self.cancelled, self.bulk and tuple(self.bulk))


class Report(NamedTuple):
    """A worker's report of its rounds since the last one, and of its present work.

    Attributes:
        progress: of requests that stream, in order; each before the request's outcome.
        num_waiting: per priority.
        num_rows: live hypotheses, paused ones included; at least those of the largest step since the last report,
            because requests that joined together have often just ended together.
    """

    outcomes: Outcomes
    progress: list[tuple[int, Progress]]
    stats: list[StepStats]
    num_waiting: tuple[int, ...]
    num_rows: int

    def __reduce__(self) -> tuple[Callable[..., "Report"], tuple[Any, ...]]:
        outcomes = [
            (key, _packed(outcome) if isinstance(outcome, Result) else outcome) for key, outcome in self.outcomes
        ]
        progress = [(key, tuple(more)) for key, more in self.progress]
        stats = [(int(priority), *rest) for priority, *rest in self.stats]
        return _report, (outcomes, progress, stats, self.num_waiting, self.num_rows)


def _commands(packed: Iterable[tuple[Any, ...]], cancelled: list[int], bulk: tuple[int, bool] | None) -> Commands:
    requests = [
        EngineRequest(key, ids, _options(options), submitted, deadline, PRIORITIES[priority], *rest)
        for key, ids, options, submitted, deadline, priority, *rest in packed
    ]
    return Commands(requests, cancelled, bulk and BulkRoom(*bulk))


def _report(
    outcomes: Iterable[tuple[int, Any]],
    progress: Iterable[tuple[int, tuple[Any, ...]]],
    stats: Iterable[tuple[Any, ...]],
    num_waiting: tuple[int, ...],
    num_rows: int,
) -> Report:
    return Report(
        [(key, _unpacked(*outcome) if isinstance(outcome, tuple) else outcome) for key, outcome in outcomes],
        [(key, Progress(*more)) for key, more in progress],
        [StepStats(PRIORITIES[priority], *rest) for priority, *rest in stats],
        num_waiting,
        num_rows,
    )


def _packed(result: Result) -> tuple[list[tuple[Any, ...]], tuple[Any, ...], Trace | None]:
    hypotheses, stats, trace = result
    # An engine's hypotheses have no parts.
    return [(*rest, reason.value, attention) for *rest, reason, attention, _ in hypotheses], tuple(stats), trace


def _unpacked(packed: Iterable[tuple[Any, ...]], stats: tuple[Any, ...], trace: Trace | None) -> Result:
    hypotheses = [
        Hypothesis(ids, log_probs, log_prob, score, FINISH_REASONS[reason], attention)
        for ids, log_probs, log_prob, score, reason, attention in packed
    ]
    return Result(tuple(hypotheses), RequestStats(*stats), trace)


@lru_cache(MAX_CACHED_OPTIONS)
def _dumps(options: DecodingOptions) -> bytes:
    return pickle.dumps(options, protocol=pickle.HIGHEST_PROTOCOL)


@lru_cache(MAX_CACHED_OPTIONS)
def _loads(pickled: bytes) -> DecodingOptions:
    options: DecodingOptions = pickle.loads(pickled)
    return options


def _pickled(options: DecodingOptions) -> bytes:
    # A prefix, or a target that is scored, mostly belongs to a single request, and it may be long. So do masks.
    is_single = bool(options.target_prefix or options.completion or options.masked_source_positions)
    return _dumps.__wrapped__(options) if is_single else _dumps(options)


def _options(pickled: bytes) -> DecodingOptions:
    return _loads(pickled) if len(pickled) <= MAX_CACHED_BYTES else _loads.__wrapped__(pickled)


def framed(message: Any) -> bytes:
    """Returns a message as it is sent: pickled, after its length."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def receive_message(connection: socket.socket) -> Any:
    """Waits for a message; returns None if the other end has hung up."""
    head = connection.recv(LENGTH.size, socket.MSG_WAITALL)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = connection.recv(length, socket.MSG_WAITALL)
    return pickle.loads(body) if len(body) == length else None


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yields the messages that these bytes complete. Raises the errors of unpickling."""
        self._received += data
        while len(self._received) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._received)
            end = LENGTH.size + length
            if len(self._received) < end:
                return
            with memoryview(self._received) as received:
                message = pickle.loads(received[LENGTH.size : end])
            del self._received[:end]
            yield message


class Link(asyncio.Protocol):
    """The server's end of the connection to one worker. Commands of one turn of the event loop are one message.

    Attributes:
        first: a future of the worker's first message, Ready or the reason why not; None if it ended before.
    """

    def __init__(self, on_report: Callable[[Report], None], on_lost: Callable[[], None]) -> None:
        """`on_lost`: called if a worker that was ready ends."""
        self.first: asyncio.Future[Ready | UserError | None] = asyncio.get_running_loop().create_future()
        self._is_ready = False
        self._on_report = on_report
        self._on_lost = on_lost
        self._frames = Frames()
        self._commands: Commands | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def next_commands(self) -> Commands:
        """Returns the commands that are sent next, to be added to."""
        if self._commands is None:
            self._commands = Commands()
            asyncio.get_running_loop().call_soon(self._send_commands)
        return self._commands

    def hang_up(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                if self._is_ready:
                    self._on_report(message)
                elif not self.first.done():
                    self._is_ready = isinstance(message, Ready)
                    self.first.set_result(message)
        except Exception:
            log.exception("a message of a worker process can't be read")
            self.hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_ready:
            self._on_lost()
        elif not self.first.done():
            self.first.set_result(None)

    def _send_commands(self) -> None:
        commands, self._commands = self._commands, None
        # If the worker has gone, `connection_lost` reports it.
        if not self._transport.is_closing():
            self._transport.write(framed(commands))


COUNT: Final = struct.Struct("<Q")
KEY: Final = "Q"


class FlightRecord:
    """Keys of the requests that a worker is computing, in memory that it shares with the server.

    The worker writes before it computes; the server reads after the worker has died. A message could be lost in data
    that the process had not sent yet.
    """

    def __init__(self, descriptor: int) -> None:
        """Maps memory that `new_record` made; the descriptor may be closed afterwards."""
        self._memory = mmap.mmap(descriptor, 0)

    def note(self, keys: Iterable[int]) -> None:
        packed = array(KEY, keys)
        self._memory[COUNT.size : COUNT.size + len(packed) * packed.itemsize] = packed.tobytes()
        COUNT.pack_into(self._memory, 0, len(packed))

    def read(self) -> set[int]:
        (count,) = COUNT.unpack_from(self._memory)
        keys = array(KEY)
        keys.frombytes(self._memory[COUNT.size : COUNT.size + count * keys.itemsize])
        return set(keys)


def new_record(max_requests: int) -> int:
    """Makes memory for the largest number of requests computed at once; returns its descriptor."""
    descriptor = os.memfd_create("attendant-flight-record")
    os.truncate(descriptor, COUNT.size + max_requests * array(KEY).itemsize)
    return descriptor
