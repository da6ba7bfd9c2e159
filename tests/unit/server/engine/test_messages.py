"""Tests of messages between a server and its workers: they arrive unchanged."""

import pickle
import socket

import numpy as np
import pytest

from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis, Progress
from attendant.runtime.decoding.options import Choice, DecodingOptions, Sampling, scoring_options
from attendant.server.engine import messages
from attendant.server.engine.messages import (
    MAX_CACHED_OPTIONS,
    BulkRoom,
    Commands,
    EngineRequest,
    Frames,
    Priority,
    Report,
    RequestStats,
    Result,
    StepStats,
    framed,
    receive_message,
)
from attendant.server.errors import DeadlineTooShort

STATS = RequestStats(
    queue=0.1, encode=0.2, decode=0.3, first_token=0.4, total=0.5, steps=7, mean_batch_rows=2.5, submitted=0.0
)
STEP = StepStats(
    priority=Priority.BULK,
    num_rows=3,
    num_encoded=1,
    cancelled_rows=2,
    useful_cells=40,
    computed_cells=48,
    phase_seconds={"admit": 0.1, "step": 0.2},
)


def request(key: int, options: DecodingOptions, **others: object) -> EngineRequest:
    facts = {"source_ids": (4, 5, 3), "submitted": 1.5} | others
    return EngineRequest(key=key, options=options, **facts)  # type: ignore[arg-type]


def beam(max_length: int) -> DecodingOptions:
    return DecodingOptions(max_length=max_length, beam_size=2)


def arrived(message: object) -> object:
    return pickle.loads(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def test_commands_arrive_unchanged() -> None:
    forced = scoring_options((4, 5), 3)
    drawn = DecodingOptions(max_length=4, num_hypotheses=3, sampling=Sampling(seed=2**64 - 1, top_p=0.9))
    commands = Commands(
        [request(1, beam(9)), request(2, forced, deadline=2.5, priority=Priority.BULK), request(3, drawn)],
        [7, 8],
        BulkRoom(5, is_alone=True),
    )
    assert arrived(commands) == commands
    assert isinstance(arrived(commands).bulk, BulkRoom)  # type: ignore[attr-defined]


def test_received_requests_with_equal_options_share_them() -> None:
    options = beam(9)
    first, second = arrived(Commands([request(1, options)])), arrived(Commands([request(2, options)]))
    assert isinstance(first, Commands) and isinstance(second, Commands)
    assert first.requests[0].options is second.requests[0].options


def test_options_of_a_single_request_are_not_remembered() -> None:
    """A prefix may be long, and thousands of tokens may complete its last word."""
    choice = Choice((), np.arange(4, 2000, dtype=np.int32).tobytes())
    options = DecodingOptions(max_length=9, completion=(choice,)), DecodingOptions(max_length=9, target_prefix=(4, 5))
    before = messages._dumps.cache_info().currsize
    commands = Commands([request(key, each) for key, each in enumerate(options)])
    assert arrived(commands) == commands
    assert messages._dumps.cache_info().currsize == before


HYPOTHESES = (
    Hypothesis((4, 5), (-0.5, -0.25, -1.0), -1.75, -1.5, FinishReason.EOS),
    Hypothesis((6,), (-2.0,), -2.0, -2.0, FinishReason.LENGTH),
)


@pytest.mark.parametrize(
    "message",
    [
        Commands(),
        Commands([request(number, beam(number + 1)) for number in range(2 * MAX_CACHED_OPTIONS)]),
        Report([], [], [], (0, 0), 0),
        Report([(1, Result(HYPOTHESES, STATS))], [(2, Progress(3, (4, 5)))], [STEP], (3, 4), 6),
    ],
    ids=["no commands", "more options than the cache holds", "nothing to report", "a report"],
)
def test_a_message_arrives_unchanged(message: object) -> None:
    assert arrived(message) == message


def test_attention_arrives_unchanged() -> None:
    attention = np.array([[0.25, 0.75]], np.float32)
    result = Result((Hypothesis((), (-2.0,), -2.0, -2.0, FinishReason.EOS, attention),), STATS)
    report = arrived(Report([(1, result)], [], [], (0, 0), 0))
    assert isinstance(report, Report)
    ((_, outcome),) = report.outcomes
    assert isinstance(outcome, Result)
    weights = outcome.hypotheses[0].attention
    assert weights is not None and weights.dtype == np.float32
    np.testing.assert_array_equal(weights, attention)


def test_an_error_arrives_among_results() -> None:
    report = arrived(Report([(1, DeadlineTooShort(0.5, 2.0)), (2, Result((), STATS))], [], [], (0, 0), 0))
    assert isinstance(report, Report)
    (_, error), (_, result) = report.outcomes
    assert isinstance(error, DeadlineTooShort) and str(error) == str(DeadlineTooShort(0.5, 2.0))
    assert result == Result((), STATS)


def test_messages_arrive_whole_however_they_are_cut() -> None:
    messages = [{"number": number, "bulk": "x" * number * 7} for number in range(50)]
    stream = b"".join(map(framed, messages))
    for size in (1, 3, 64, len(stream)):
        frames = Frames()
        got = [message for at in range(0, len(stream), size) for message in frames.feed(stream[at : at + size])]
        assert got == messages


def test_blocking_reads_return_each_message_and_none_at_the_end() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(framed("first") + framed("second") + b"\1\0\0\0")
        theirs.close()
        assert [receive_message(ours) for _ in range(3)] == ["first", "second", None]
