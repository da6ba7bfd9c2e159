"""Decoding in process beside the peers: the parts of the results."""

import itertools
from collections.abc import Iterable

from benchmarks.command import Context
from benchmarks.decoding.job import Job
from benchmarks.decoding.measurement import Measurement, measure
from benchmarks.decoding.system import System
from benchmarks.peers.candidates import Candidate, ctranslate2, ours, plain, toolkits
from benchmarks.peers.marian import marian
from benchmarks.results import Cell, Part
from benchmarks.training.environment import InstallationFailed

BEAM_SIZE = 4
NUM_ALONE = 20
"""Sentences decoded one after the other in a visit."""


def greedy(context: Context) -> Part:
    return _throughput(
        context,
        _all(context),
        beam_size=1,
        title="Greedy, in process",
        about="Sentences per second, each system at its best setting of those tried.",
    )


def beam(context: Context) -> Part:
    return _throughput(
        context,
        _all(context),
        beam_size=BEAM_SIZE,
        title=f"Beam {BEAM_SIZE}, in process",
        about="As before, with a beam. The best hypothesis is returned.",
    )


def single(context: Context) -> Part:
    """One sentence at a time, on one thread."""
    job = _job(context, num_sentences=NUM_ALONE, batch_size=1)
    found = measured(context, _all(context, alone=True), job, context.visit_seconds / 4)
    rows: list[list[Cell]] = []
    figures: dict[str, float] = {}
    for key, name, measurement, problem in found:
        if measurement is None or measurement.latency is None:
            rows.append([name, None, None, problem])
            continue
        figures[key] = 1e3 * measurement.latency
        rows.append([name, 1e3 * measurement.latency, len(_latencies(measurement)), measurement.system.about])
    return Part(
        title="One sentence alone, in process, one thread",
        about=f"Median latency of {job.num_tokens} source positions and as many steps, greedy.",
        columns=["system", "ms", "sentences", "remarks"],
        rows=rows,
        figures=figures,
    )


def _all(context: Context, *, alone: bool = False) -> list[Candidate]:
    peers = (peer(context, alone=alone) for peer in (plain, ctranslate2, toolkits, marian))
    return [*ours(context, best=not alone), *itertools.chain.from_iterable(peers)]


def _throughput(context: Context, candidates: Iterable[Candidate], *, beam_size: int, title: str, about: str) -> Part:
    job = _job(context, num_sentences=256, beam_size=beam_size)
    found = measured(context, candidates, job, context.visit_seconds)
    rows: list[list[Cell]] = []
    figures: dict[str, float] = {}
    for key, name, measurement, problem in found:
        if measurement is None or measurement.speed is None or measurement.cpu_seconds is None:
            rows.append([name, None, None, None, None, problem])
            continue
        # Of several settings of one system the fastest is the one that is compared.
        figures[key] = max(measurement.speed, figures.get(key, 0.0))
        speeds = [outcome.speed for outcome in measurement.outcomes]
        spread = f"{min(speeds):,.0f}-{max(speeds):,.0f}"
        batch, cpu = str(measurement.batch_size), 1e3 * measurement.cpu_seconds
        rows.append([name, measurement.speed, spread, batch, cpu, measurement.system.about])
    return Part(
        title=title,
        about=about,
        columns=["system", "sentences/s", "slowest-fastest", "batch", "CPU ms/sentence", "remarks"],
        rows=rows,
        figures=figures,
    )


Found = list[tuple[str, str, Measurement | None, str | None]]


def measured(context: Context, candidates: Iterable[Candidate], job: Job, visit_seconds: float) -> Found:
    """Each candidate's key, name, and its measurement or why it has none; in the order given."""
    prepared: list[tuple[Candidate, System | None, str | None]] = []
    for candidate in candidates:
        try:
            prepared.append((candidate, candidate.prepare(), None))
        except InstallationFailed as error:
            context.say(f"{candidate.name}: {error}")
            prepared.append((candidate, None, f"not measured: {error}"))
    systems = [system for _, system, _ in prepared if system is not None]
    measurements = iter(
        measure(systems, job, num_rounds=context.num_rounds, visit_seconds=visit_seconds, say=context.say)
    )
    found: Found = []
    for candidate, system, problem in prepared:
        if system is None:
            found.append((candidate.key, candidate.name, None, problem))
        else:
            measurement = next(measurements)
            failed = f"not measured: {measurement.problem}" if measurement.problem else None
            found.append((candidate.key, system.name, measurement, failed))
    return found


def _latencies(measurement: Measurement) -> list[float]:
    return [latency for outcome in measurement.outcomes for latency in outcome.latencies]


def _job(context: Context, *, num_sentences: int, beam_size: int = 1, batch_size: int = 64) -> Job:
    return Job(
        num_sentences=num_sentences if not context.quick else 8,
        num_tokens=context.workload.num_tokens,
        vocabulary_size=context.workload.vocabulary_size,
        beam_size=beam_size,
        batch_size=batch_size,
    )
