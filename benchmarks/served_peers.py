"""Measures servers of peers and our server under the same loads."""

from collections.abc import Sequence

import numpy as np

from attendant.server.inference.v2 import open_inference_pb2 as inference
from benchmarks.decoding import NUM_WORKERS
from benchmarks.harness import ENVIRONMENTS
from benchmarks.job import program, words_of
from benchmarks.peers import ctranslate2_program, plain_folder
from benchmarks.results import Part
from benchmarks.serving import MANY_CLIENTS, Server, attendant_server, closed_loops, open_loops
from benchmarks.workload import Context, Work, equal_work, generate_request, real_work

BATCH_SIZES = (16, 32, 64)
"""Candidates for each peer: with 64 clients, one batch of all of them, or several that take turns."""

TRANSFORMER = "12+1"
PAD_ID = 0


def served(context: Context) -> Part:
    """Served beside peers, closed loop.

    Each client asks again when it was answered; the load generator shares the machine. Medians over the rounds. Server
    CPU is that of all the server's processes.
    """
    return _closed(context, equal_work(context.workload), (1, MANY_CLIENTS))


def real_lengths(context: Context) -> Part:
    """Served beside peers, lengths of real sentences.

    64 clients in a closed loop, as before; 5 to 80 source positions, and each sentence ends after its own number of
    steps. In Triton the client pads the source, and the loop cuts what all sources of a batch have of it, and steps
    until the last one has ended. In CTranslate2 rows end, and leave the batch, each at its own step.
    """
    return _closed(context, real_work(context.workload), (MANY_CLIENTS,))


def arrivals(context: Context) -> Part:
    """Served beside peers, Poisson arrivals, lengths of real sentences.

    Latency counts from the planned moment of each arrival. Capacity: requests per second of 192
    clients in a closed loop.
    """
    work = real_work(context.workload)
    return open_loops(context, [_own(context, work), _triton(context, work, 16), _ctranslate2(context, work, 32)])


def _closed(context: Context, work: Work, clients: Sequence[int]) -> Part:
    peers = [peer(context, work, size) for size in BATCH_SIZES for peer in (_triton, _ctranslate2)]
    return closed_loops(context, [_own(context, work), *peers], clients)


def _own(context: Context, work: Work) -> Server:
    return attendant_server(context, requests=[generate_request(*pair) for pair in work])


def _triton(context: Context, work: Work, batch_size: int) -> Server:
    def command() -> list[str]:
        python, folder = ENVIRONMENTS["triton"].install(context.cache), str(plain_folder(context) / "int8")
        sizes = {"num_instances": NUM_WORKERS, "batch_size": batch_size}
        return program("programs:serve_triton", python, folder=folder, **sizes)

    return Server(
        key="triton",
        name=f"NVIDIA Triton, batches up to {batch_size}",
        command=command,
        requests=triton_requests(work),
        method="/inference.GRPCInferenceService/ModelInfer",
        # A start fails if its processes don't find each other within a second.
        max_starts=3,
        about=f"{ENVIRONMENTS['triton'].package}, {NUM_WORKERS} instances of the plain int8 loop",
    )


def triton_requests(work: Work) -> list[bytes]:
    """Returns requests with padded sources, because Triton batches only equal shapes."""
    longest, requests = max(len(source) for source, _ in work), []
    for source, num_steps in work:
        values = {"source_ids": source + [PAD_ID] * (longest - len(source)), "num_steps": [num_steps]}
        request = inference.ModelInferRequest(
            model_name="mt",
            inputs=[{"name": name, "datatype": "INT64", "shape": [1, len(ids)]} for name, ids in values.items()],
            raw_input_contents=[np.array(ids, "<i8").tobytes() for ids in values.values()],
        )
        requests.append(request.SerializeToString())
    return requests


def _ctranslate2(context: Context, work: Work, batch_size: int) -> Server:
    sizes = {"num_workers": NUM_WORKERS, "batch_size": batch_size}
    return Server(
        key="ctranslate2",
        name=f"CTranslate2 {TRANSFORMER} behind grpc.aio, batches up to {batch_size}",
        command=lambda: ctranslate2_program(context, TRANSFORMER, "serve", **sizes),
        requests=[f"{num_steps} {words_of(source)} </s>".encode() for source, num_steps in work],
        method="/benchmarks.CTranslate2/Translate",
        about=f"{ENVIRONMENTS['ctranslate2'].package}, inter_threads={NUM_WORKERS}, int8",
    )
