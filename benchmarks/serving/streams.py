"""Answers that are streamed: when their first token is there."""

from attendant.server.bench.load import Load
from benchmarks.command import Context
from benchmarks.harness.measurement import Columns, Measurement, measure, part_of, running_system
from benchmarks.harness.results import Cell, Part
from benchmarks.serving.closed_loop import MAX_ROUNDS
from benchmarks.serving.servers import attendant_server, running

NUM_CLIENTS = 64


def first_token(context: Context) -> Part:
    """Time to the first token.

    64 clients in a closed loop, greedy: each answer in one message, or streamed. Until the first message of an answer,
    and until its last one.
    """
    with running(attendant_server(context)) as server:
        kinds = {"_unary": "closed", "_streamed": "stream"}
        visits = {
            point: server.visit(Load(kind=kind, num_clients=NUM_CLIENTS, seconds=context.visit_seconds))
            for point, kind in kinds.items()
        }
        for warm_up in visits.values():
            warm_up(0)
        system = running_system("attendant", "Attendant", visits)
        found = measure([system], num_rounds=min(MAX_ROUNDS, context.num_rounds), say=context.say)
    columns: Columns = {
        "answers": lambda one: one.point.removeprefix("_"),
        "first token p50 ms": lambda one: _of_streams(one, "first_p50"),
        "first token p99 ms": lambda one: _of_streams(one, "first_p99"),
        "whole answer p50 ms": "p50",
        "whole answer p99 ms": "p99",
        "requests/s": "speed",
        "server CPU ms/request": "cpu",
    }
    return part_of(found, columns, what="server", points=list(kinds))


def _of_streams(one: Measurement, figure: str) -> Cell:
    return one.median(figure) if figure in one.samples else ""
