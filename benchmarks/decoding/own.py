"""Decoding in process, without peers: Attendant beside its own graphs."""

from benchmarks.command import Context
from benchmarks.decoding.job import Job
from benchmarks.decoding.measurement import Measurement, measure
from benchmarks.decoding.system import System, attendant, bare_graphs
from benchmarks.results import Cell, Part

BEAM_SIZE = 4
NUM_ALONE = 20
LAYOUTS = ((1, 1), (2, 1), (1, 2))
"""Workers (processes) and threads of each."""


def decoding(context: Context) -> Part:
    """Greedy and beam, one worker and two, int8 and fp32, each with the bare graphs beside it."""
    rows: list[list[Cell]] = []
    figures: dict[str, float] = {}
    for beam_size in (1, BEAM_SIZE):
        job = _job(context, num_sentences=256 // beam_size, beam_size=beam_size)
        measurements = measure(
            _systems(context), job, num_rounds=context.num_rounds, visit_seconds=context.visit_seconds, say=context.say
        )
        search = "greedy" if beam_size == 1 else f"beam {beam_size}"
        for measurement in measurements:
            rows.append(_throughput_row(search, measurement))
            if measurement.speed is not None:
                figures[f"{search}, {measurement.system.name}"] = measurement.speed
    return Part(
        title="Decoding in process",
        about=(
            f"{context.workload.num_tokens} source positions, as many decoder steps. Bare graphs: the same calls into "
            "the graphs, replayed with nothing between them: the limit of any engine around them. Each at the fastest "
            "of its batch sizes."
        ),
        columns=["search", "system", "sentences/s", "batch", "CPU ms/sentence"],
        rows=rows,
        figures=figures,
    )


def alone(context: Context) -> Part:
    """One sentence at a time."""
    systems = [
        make(context.bundle, precision, num_workers=1, num_threads=threads)
        for precision in ("int8", "fp32")
        for make in (attendant, bare_graphs)
        for threads in (1, 2)
    ]
    job = _job(context, num_sentences=NUM_ALONE, batch_size=1)
    found = measure(
        systems, job, num_rounds=context.num_rounds, visit_seconds=context.visit_seconds / 4, say=context.say
    )
    return Part(
        title="One sentence alone, in process",
        about="Median latency, greedy; the bare graphs' is what is left without search and bookkeeping.",
        columns=["system", "ms", "CPU ms/sentence"],
        rows=[[one.system.name, _ms(one.latency), one.problem or _ms(one.cpu_seconds)] for one in found],
        figures={one.system.name: 1e3 * one.latency for one in found if one.latency is not None},
    )


def _systems(context: Context) -> list[System]:
    return [
        make(context.bundle, precision, num_workers=num_workers, num_threads=num_threads)
        for precision in ("int8", "fp32")
        for num_workers, num_threads in (LAYOUTS[:1] if context.quick else LAYOUTS)
        for make in (attendant, bare_graphs)
    ]


def _job(context: Context, *, num_sentences: int, beam_size: int = 1, batch_size: int = 64) -> Job:
    return Job(
        num_sentences=8 if context.quick else num_sentences,
        num_tokens=context.workload.num_tokens,
        vocabulary_size=context.workload.vocabulary_size,
        beam_size=beam_size,
        batch_size=batch_size,
    )


def _throughput_row(search: str, measurement: Measurement) -> list[Cell]:
    if measurement.problem is not None:
        return [search, measurement.system.name, f"not measured: {measurement.problem}", None, None]
    cpu = _ms(measurement.cpu_seconds)
    return [search, measurement.system.name, measurement.speed, str(measurement.batch_size), cpu]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
