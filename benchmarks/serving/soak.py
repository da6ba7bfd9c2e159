"""Resident memory over many requests of random shapes: python -m benchmarks --only memory --requests 1000000."""

import random
import statistics
from dataclasses import dataclass, replace

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
from benchmarks.serving.overhead import empty_service
from benchmarks.serving.served import Served, ServedSystem
from benchmarks.training.workload import QUICK

MAX_POSITIONS = 64
MAX_STEPS = 12
NUM_CLIENTS = 128
NUM_SAMPLES = 40
WARM_UP_PART = 0.1
FOR_EVER = 1e6


@dataclass(frozen=True, slots=True)
class Course:
    """A server's memory over its requests.

    Attributes:
        requests: answered until each sample.
        mebibytes: resident then.
    """

    requests: list[float]
    mebibytes: list[float]

    @property
    def first(self) -> float:
        """MiB when it was warm. A few samples each: what the allocator holds at a moment goes up and down."""
        warm = round(NUM_SAMPLES * WARM_UP_PART)
        return statistics.median(self.mebibytes[warm - 1 : warm + 2])

    @property
    def last(self) -> float:
        return statistics.median(self.mebibytes[-3:])


def memory(context: Context) -> Part:
    """Unary calls and bulk work in turns; the shapes are random, the model small: so many requests take minutes.

    What a request leaks does not depend on the model's sizes; against a small model's memory it shows earlier.
    """
    payloads = write_payloads(context.cache / "payloads" / "soak.txt", _requests())
    small = context.of_sizes(QUICK)
    server = attendant_server(small, payloads=payloads, num_workers=1, name="server")
    courses = {system.name: _course(system, context) for system in (server, empty_service(payloads))}
    ours = courses["server"]
    return Part(
        title="Resident memory over requests of random shapes",
        about=(
            f"1 to {MAX_POSITIONS} source positions, beams of 1 to {MAX_BEAM_SIZE}, 1 to {MAX_STEPS} tokens; half "
            "unary calls, half bulk work; a small model, whose own memory hides little. Warm after "
            f"{100 * WARM_UP_PART:g} %. Empty service: what grpc.aio needs for the same requests when nothing is done "
            "with them (it has imported the benchmarks, and so begins higher)."
        ),
        columns=["", "requests", "MiB after the warm-up", "MiB at the end", "growth MiB", "growth"],
        rows=[
            [
                *(name, f"{one.requests[-1]:,.0f}", one.first, one.last),
                *(f"{one.last - one.first:.1f}", f"{100 * (one.last / one.first - 1):.2f} %"),
            ]
            for name, one in courses.items()
        ],
        figures={"growth": ours.last / ours.first - 1, "num_requests": ours.requests[-1]},
        pictures=[
            Picture(
                file="memory.svg",
                title="Resident memory of the server",
                x_label="requests",
                y_label="MiB",
                series=[Series(name="server", xs=ours.requests, ys=ours.mebibytes)],
            )
        ],
    )


def _requests() -> list[bytes]:
    generator = random.Random(9)
    requests = []
    for number in range(NUM_PAYLOADS):
        job = Job(num_sentences=1, num_tokens=generator.randint(2, MAX_POSITIONS), vocabulary_size=200, seed=number)
        beam_size = generator.randint(1, MAX_BEAM_SIZE)
        requests.append(generate_request(sentences(job)[0], generator.randint(2, MAX_STEPS), beam_size))
    return requests


def _course(system: ServedSystem, context: Context) -> Course:
    each = max(1, (2000 if context.quick else context.num_requests) // NUM_SAMPLES // 2)
    course = Course([], [])
    # With the allocator as users have it: told to keep all that is freed, it shows the highest need that ever was.
    with (
        Served(replace(system, keeps_memory=False)) as served,
        LoadGenerator(served) as unary,
        LoadGenerator(served, BULK) as bulk,
    ):
        for number in range(1, NUM_SAMPLES + 1):
            for one, kind in ((unary, "closed"), (bulk, "bulk")):
                one.run(Load(kind=kind, num_clients=NUM_CLIENTS, num_requests=each, seconds=FOR_EVER))
            course.requests.append(2.0 * number * each)
            course.mebibytes.append(served.resident_bytes() / 2**20)
            if number % 10 == 0:
                asked, found = course.requests[-1], course.mebibytes[-1]
                context.say(f"{system.name}, {asked:,.0f} requests: {found:.1f} MiB resident")
    return course
