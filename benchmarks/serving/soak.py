"""Resident memory over many requests of random shapes: python -m benchmarks --only memory --requests 1000000."""

import random
import statistics
from dataclasses import replace

from benchmarks.command import Context
from benchmarks.decoding.job import Job, sentences
from benchmarks.mt import MAX_BEAM_SIZE
from benchmarks.results import Part, Picture, Series
from benchmarks.serving.attendant_server import (
    BULK,
    NUM_PAYLOADS,
    attendant_server,
    generate_request,
    write_payloads,
)
from benchmarks.serving.generator import Load
from benchmarks.serving.load import LoadGenerator
from benchmarks.serving.served import Served
from benchmarks.training.workload import QUICK

MAX_POSITIONS = 64
MAX_STEPS = 12
NUM_CLIENTS = 128
NUM_SAMPLES = 40
WARM_UP_PART = 0.1
BULK_PART = 0.5
FOR_EVER = 1e6


def memory(context: Context) -> Part:
    """Unary calls and bulk work in turns; the shapes are random, the model small: so many requests take minutes.

    What a request leaks does not depend on the model's sizes; against a small model's memory it shows earlier.
    """
    small = context.of_sizes(QUICK)
    generator = random.Random(9)
    requests = []
    for number in range(NUM_PAYLOADS):
        job = Job(num_sentences=1, num_tokens=generator.randint(2, MAX_POSITIONS), vocabulary_size=200, seed=number)
        beam_size = generator.randint(1, MAX_BEAM_SIZE)
        requests.append(generate_request(sentences(job)[0], generator.randint(2, MAX_STEPS), beam_size))
    payloads = write_payloads(context.cache / "payloads" / "soak.txt", requests)
    num_requests = 2000 if context.quick else context.num_requests
    each = max(1, num_requests // NUM_SAMPLES // 2)
    asked: list[float] = []
    mebibytes: list[float] = []
    # With the allocator as users have it: told to keep all that is freed, it shows the highest need that ever was.
    server = replace(attendant_server(small, payloads=payloads, num_workers=1), keeps_memory=False)
    with (
        Served(server) as served,
        LoadGenerator(served) as unary,
        LoadGenerator(served, BULK) as bulk,
    ):
        for number in range(1, NUM_SAMPLES + 1):
            for one, kind in ((unary, "closed"), (bulk, "bulk")):
                one.run(Load(kind=kind, num_clients=NUM_CLIENTS, num_requests=each, seconds=FOR_EVER))
            asked.append(2.0 * number * each)
            mebibytes.append(served.resident_bytes() / 2**20)
            if number % 10 == 0:
                context.say(f"{asked[-1]:,.0f} requests: {mebibytes[-1]:.1f} MiB resident")
    warm = round(NUM_SAMPLES * WARM_UP_PART)
    # A few samples each: what the allocator holds at a moment goes up and down.
    first, last = statistics.median(mebibytes[warm - 1 : warm + 2]), statistics.median(mebibytes[-3:])
    return Part(
        title="Resident memory over requests of random shapes",
        about=(
            f"1 to {MAX_POSITIONS} source positions, beams of 1 to {MAX_BEAM_SIZE}, 1 to {MAX_STEPS} tokens; half "
            "unary calls, half bulk work; a small model, whose own memory hides little. Warm after "
            f"{100 * WARM_UP_PART:g} %."
        ),
        columns=["requests", "MiB after the warm-up", "MiB at the end", "growth"],
        rows=[[f"{asked[-1]:,.0f}", first, last, f"{100 * (last / first - 1):.2f} %"]],
        figures={"growth": last / first - 1, "num_requests": asked[-1]},
        pictures=[
            Picture(
                file="memory.svg",
                title="Resident memory of the server",
                x_label="requests",
                y_label="MiB",
                series=[Series(name="server", xs=asked, ys=mebibytes)],
            )
        ],
    )
