"""The servers, ours and the peers', under the same closed loops."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.command import Context
from benchmarks.decoding.in_process import NUM_WORKERS
from benchmarks.harness.environment import ENVIRONMENTS
from benchmarks.harness.process import output_of
from benchmarks.harness.results import Part
from benchmarks.job import sentences, words_of
from benchmarks.peers.decoders import TRANSFORMERS, ctranslate2_program, plain_folder
from benchmarks.program import program
from benchmarks.serving.closed_loop import closed_loops
from benchmarks.serving.payloads import equal_job, write_payloads
from benchmarks.serving.servers import Server, attendant_server

BATCH_SIZES = (32, 64)
"""Tried of each peer: with 64 clients, one batch of all of them, or two that take turns."""


def served(context: Context) -> Part:
    """Served beside peers, closed loop.

    Each client asks again when it was answered; the load generator shares the machine. Medians over the rounds. Server
    CPU is that of all the server's processes.
    """
    peers = [peer(context, size) for size in BATCH_SIZES for peer in (_triton, _ctranslate2)]
    seconds, file = 2 * context.visit_seconds, "served-beside-peers.svg"
    return closed_loops(context, [attendant_server(context), *peers], (1, 64), seconds=seconds, file=file)


def _triton(context: Context, batch_size: int) -> Server:
    sizes = {"num_steps": context.workload.num_tokens, "num_instances": NUM_WORKERS, "batch_size": batch_size}

    def server() -> Sequence[str]:
        python, folder = ENVIRONMENTS["triton"].install(context.cache), str(plain_folder(context) / "int8")
        return program("peers.triton:serve", python, folder=folder, ports=_free_ports(3), **sizes)

    def payloads() -> Path:
        path, python = write_payloads(context, "triton", []), ENVIRONMENTS["triton"].install(context.cache)
        output_of(program("peers.triton:write_payloads", python, path=str(path), job=asdict(equal_job(context))))
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


def _ctranslate2(context: Context, batch_size: int) -> Server:
    transformer = TRANSFORMERS[1]
    sizes = {"num_steps": context.workload.num_tokens, "num_workers": NUM_WORKERS, "batch_size": batch_size}

    def payloads() -> Path:
        requests = (f"{words_of(source)} </s>".encode() for source in sentences(equal_job(context)))
        return write_payloads(context, "ctranslate2", requests)

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
