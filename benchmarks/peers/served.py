"""The servers, ours and the peers', under the same load."""

import json
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.command import Context
from benchmarks.decoding.in_process import NUM_WORKERS
from benchmarks.harness.environment import ENVIRONMENTS
from benchmarks.harness.process import output_of
from benchmarks.harness.results import Part
from benchmarks.job import words_of
from benchmarks.peers.decoders import TRANSFORMERS, ctranslate2_program, plain_folder
from benchmarks.program import program
from benchmarks.serving.closed_loop import closed_loops
from benchmarks.serving.open_loop import open_loops
from benchmarks.serving.payloads import EQUAL, REAL, Traffic, write_payloads
from benchmarks.serving.servers import Server, attendant_server

BATCH_SIZES = (16, 32, 64)
"""Tried of each peer: with 64 clients, one batch of all of them, or several that take turns."""

CLIENTS = 64


def served(context: Context) -> Part:
    """Served beside peers, closed loop.

    Each client asks again when it was answered; the load generator shares the machine. Medians over the rounds. Server
    CPU is that of all the server's processes.
    """
    return _closed(context, EQUAL, (1, CLIENTS), file="served-beside-peers.svg")


def real_lengths(context: Context) -> Part:
    """Served beside peers, lengths of real sentences.

    64 clients in a closed loop, as before; 5 to 80 source positions, and each sentence ends after its own number of
    steps. In Triton the client pads the source, and the loop cuts what all sources of a batch have of it, and steps
    until the last one has ended. In CTranslate2 rows end, and leave the batch, each at its own step.
    """
    return _closed(context, REAL, (CLIENTS,), file="real-lengths-beside-peers.svg")


def arrivals(context: Context) -> Part:
    """Served beside peers, Poisson arrivals, lengths of real sentences.

    Latency counts from the planned moment of each arrival. Capacity: what 192 clients in a closed loop get.
    """
    sizes = {_triton: 16, _ctranslate2: 32}
    peers = [peer(context, REAL, size) for peer, size in sizes.items()]
    servers = [_own(context, REAL), *peers]
    return open_loops(context, servers, file="arrivals-beside-peers.svg")


def _closed(context: Context, traffic: Traffic, clients: Sequence[int], *, file: str) -> Part:
    peers = [peer(context, traffic, size) for size in BATCH_SIZES for peer in (_triton, _ctranslate2)]
    return closed_loops(
        context, [_own(context, traffic), *peers], clients, seconds=2 * context.visit_seconds, file=file
    )


def _own(context: Context, traffic: Traffic) -> Server:
    return attendant_server(context, payloads=traffic.payloads(context))


def _triton(context: Context, traffic: Traffic, batch_size: int) -> Server:
    sizes = {"num_instances": NUM_WORKERS, "batch_size": batch_size}

    def server() -> Sequence[str]:
        python, folder = ENVIRONMENTS["triton"].install(context.cache), str(plain_folder(context) / "int8")
        return program("peers.triton:serve", python, folder=folder, ports=_free_ports(3), **sizes)

    def payloads() -> Path:
        python = ENVIRONMENTS["triton"].install(context.cache)
        path = write_payloads(context, f"triton-{traffic.name}", [])
        work = path.with_suffix(".json")
        work.write_text(json.dumps(traffic.work(context)), encoding="utf-8")
        output_of(program("peers.triton:write_payloads", python, path=str(path), work=str(work)))
        return path

    return Server(
        key="triton",
        name=f"NVIDIA Triton, batches up to {batch_size}",
        command=server,
        payloads=payloads,
        method="/inference.GRPCInferenceService/ModelInfer",
        # Its processes have one second to find each other, or the start has failed.
        max_starts=3,
        about=f"{ENVIRONMENTS['triton'].package}, {NUM_WORKERS} instances of the plain int8 loop",
    )


def _ctranslate2(context: Context, traffic: Traffic, batch_size: int) -> Server:
    transformer = TRANSFORMERS[1]
    sizes = {"num_workers": NUM_WORKERS, "batch_size": batch_size}

    def payloads() -> Path:
        requests = (f"{num_steps} {words_of(source)} </s>".encode() for source, num_steps in traffic.work(context))
        return write_payloads(context, f"ctranslate2-{traffic.name}", requests)

    return Server(
        key="ctranslate2",
        name=f"CTranslate2 {transformer.name} behind grpc.aio, batches up to {batch_size}",
        command=lambda: ctranslate2_program(context, transformer, "serve_batches", **sizes),
        payloads=payloads,
        method="/benchmarks.CTranslate2/Translate",
        about=f"{ENVIRONMENTS['ctranslate2'].package}, inter_threads={NUM_WORKERS}, int8",
    )


def _free_ports(number: int) -> list[int]:
    """Ports that nobody listens on now."""
    with ExitStack() as exits:
        sockets = [exits.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [one.getsockname()[1] for one in sockets]
