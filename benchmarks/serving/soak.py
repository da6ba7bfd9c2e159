"""Resident memory over many requests of random shapes: python -m benchmarks --only memory --requests 1000000."""

import random
import statistics
from collections.abc import Iterator
from dataclasses import replace

from attendant.server.bench.load import Load
from benchmarks.command import Context
from benchmarks.harness.results import Part, Picture
from benchmarks.job import Job, sentences
from benchmarks.mt import MAX_BEAM_SIZE
from benchmarks.serving.payloads import NUM_REQUESTS, generate_request
from benchmarks.serving.servers import Server, attendant_server, empty_service, running
from benchmarks.workload import QUICK

MAX_POSITIONS = 64
MAX_STEPS = 12
NUM_CLIENTS = 128
NUM_SAMPLES = 40
NUM_WARM_UPS = 4
"""Samples."""

FOR_EVER = 1e6


def memory(context: Context) -> Part:
    """Resident memory over requests of random shapes.

    1 to 64 source positions, beams of 1 to 8, 1 to 12 tokens; half unary calls, half bulk work; a small model, whose
    own memory hides little: what a request leaks does not depend on the model's sizes. Warm after 10 %. Empty service:
    what grpc.aio needs for the same requests when nothing is done with them.
    """
    small = replace(context, workload=QUICK)
    requests = list(_requests())
    servers = attendant_server(small, requests=requests, num_workers=1, name="server"), empty_service(requests)
    part = Part(columns=["", "requests", "MiB after the warm-up", "MiB at the end", "growth MiB", "growth"])
    for server in servers:
        course = list(_course(server, context))
        sizes = [mebibytes for _, mebibytes in course]
        # A few samples each: what the allocator holds at a moment goes up and down.
        first, last = statistics.median(sizes[NUM_WARM_UPS - 1 : NUM_WARM_UPS + 2]), statistics.median(sizes[-3:])
        growth, num_requests = last / first - 1, course[-1][0]
        changes = f"{last - first:.1f}", f"{100 * growth:.2f} %"
        part.rows.append([server.name, f"{num_requests:,.0f}", first, last, *changes])
        if server is servers[0]:
            title, series = "Resident memory of the server", {server.name: course}
            picture = Picture(file="memory.svg", title=title, x_label="requests", y_label="MiB", series=series)
            part.pictures.append(picture)
            part.figures.update(growth=growth, num_requests=num_requests)
    return part


def _requests() -> Iterator[bytes]:
    generator = random.Random(9)
    for number in range(NUM_REQUESTS):
        job = Job(num_sentences=1, num_tokens=generator.randint(2, MAX_POSITIONS), vocabulary_size=200, seed=number)
        beam_size = generator.randint(1, MAX_BEAM_SIZE)
        yield generate_request(sentences(job)[0], generator.randint(2, MAX_STEPS), beam_size)


def _course(server: Server, context: Context) -> Iterator[tuple[float, float]]:
    """(requests answered, MiB resident then): unary calls and bulk work in turns."""
    each = max(1, (2000 if context.quick else context.options.requests) // NUM_SAMPLES // 2)
    # With the allocator as users have it: told to keep all that is freed, it shows the highest need that ever was.
    with running(replace(server, keeps_memory=False)) as run:
        for number in range(1, NUM_SAMPLES + 1):
            for kind in ("closed", "bulk"):
                run.load(Load(kind=kind, num_clients=NUM_CLIENTS, num_requests=each, seconds=FOR_EVER))
            yield 2.0 * number * each, run.process.resident_bytes() / 2**20
