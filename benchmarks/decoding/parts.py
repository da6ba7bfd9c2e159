"""Decoding in process, without peers: Attendant beside its own graphs, and beside another checkout of itself."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from attendant.runtime.errors import UserError
from benchmarks.command import Context
from benchmarks.decoding.in_process import PRECISIONS, SEARCHES, Decoder, job_of, one_by_one, own_decoder, throughput
from benchmarks.decoding.products import reading_ms
from benchmarks.harness.measurement import figures, measure
from benchmarks.harness.process import output_of
from benchmarks.harness.results import Cell, Part
from benchmarks.job import Job

LAYOUTS = ((1, 1), (2, 1), (1, 2))
"""Workers (processes) and threads of each."""

NUM_ROWS = 64
MAKE_BUNDLE = (
    "import json, pathlib, sys; from benchmarks import mt; "
    "print(mt.mt_bundle(mt.Workload(**json.loads(sys.argv[1])), pathlib.Path(sys.argv[2])))"
)
"""What every checkout of this project since version 0.1 understands."""


def decoding(context: Context) -> Part:
    """Decoding in process.

    20 source positions, as many decoder steps. Bare graphs: the same calls into the graphs, replayed with nothing
    between them: the limit of any engine around them. Each at the fastest of its batch sizes.
    """
    decoders = [
        _apart(own_decoder(context, precision, num_workers=num_workers, num_threads=num_threads, bare=bare))
        for precision in PRECISIONS
        for num_workers, num_threads in (LAYOUTS[:1] if context.quick else LAYOUTS)
        for bare in (False, True)
    ]
    parts = {search: throughput(context, decoders, beam_size) for search, beam_size in SEARCHES.items()}
    return Part(
        columns=["search", *parts["greedy"].columns],
        rows=[[search, *row] for search, part in parts.items() for row in part.rows],
        figures={f"{search}, {name}": value for search, part in parts.items() for name, value in part.figures.items()},
    )


def alone(context: Context) -> Part:
    """One sentence alone, in process.

    Median latency, greedy; the bare graphs' is what is left without search and bookkeeping. Reading the weights: what
    one core takes to read the int8 weights of all steps, and nothing else.
    """
    decoders = [
        _apart(own_decoder(context, precision, num_threads=num_threads, bare=bare))
        for precision in PRECISIONS
        for bare in (False, True)
        for num_threads in (1, 2)
    ]
    part, bound = one_by_one(context, decoders), reading_ms(context.workload)
    row: list[Cell] = ["reading the weights, int8", bound, None, None, None]
    return replace(part, rows=[*part.rows, row], figures=part.figures | {"reading_ms": bound})


def _apart(decoder: Decoder) -> Decoder:
    """With figures of its own beside those of its other settings."""
    return replace(decoder, key=decoder.name)


def against(context: Context) -> Part:
    """Against another checkout.

    Decoding in process on one thread by this code and by that of another checkout, each with its own bundle, in turns;
    medians of the rounds and their ratio.
    """
    folder: Path | None = context.options.against
    if folder is None or not (folder / "benchmarks").is_dir():
        raise UserError(f"--against must name another checkout of this project, got {folder}")
    jobs: dict[str, Job] = {}
    for search, size in SEARCHES.items():
        together = job_of(context, num_sentences=256 // size, beam_size=size, batch_size=NUM_ROWS // size)
        jobs[f": {search}, {NUM_ROWS} rows"] = together
        jobs[f": {search}, 1 sentence"] = replace(together, num_sentences=20 // size, batch_size=1)
    decoders = [(own_decoder(context, one), _other_decoder(context, folder.resolve(), one)) for one in PRECISIONS]
    systems = [one.system(jobs, context.visit_seconds, fixed=True) for pair in decoders for one in pair]
    found = measure(systems, num_rounds=context.num_rounds, say=context.say)
    if problems := [one.problem for one in found if one.problem is not None]:
        raise UserError(f"--against {folder}: {problems[0]}")
    rows: list[list[Cell]] = []
    for precision, ours, theirs in zip(PRECISIONS, found[::2], found[1::2], strict=True):
        for point in jobs:
            new, old = ours.at(point), theirs.at(point)
            cells = [cell for one in (new, old) for cell in (one.median("speed"), one.spread("speed"))]
            ratio = f"{new.median('speed') / old.median('speed'):.3f} x"
            rows.append([f"{precision}, {point.removeprefix(': ')}", *cells, ratio])
    revision = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(revision, capture_output=True, text=True, check=False).stdout.strip()
    columns = ["", "sentences/s", "slowest-fastest", "the other's", "slowest-fastest", "ratio"]
    return Part(columns=columns, rows=rows, figures=figures(found), note=f"The other: {commit or folder.name}.")


def _other_decoder(context: Context, folder: Path, precision: str) -> Decoder:
    """Attendant by the code of another checkout: its worker takes the same arguments and jobs as ours."""
    python = ["env", f"--chdir={folder}", f"PYTHONPATH={folder}:{folder / 'client'}", sys.executable]

    def command() -> Sequence[str]:
        workload, cache = json.dumps(asdict(context.workload)), str(context.cache / "against")
        path = output_of([*python, "-c", MAKE_BUNDLE, workload, cache]).strip().splitlines()[-1]
        return [*python, "-m", "benchmarks.decoding.attendant_worker", path, precision, "1"]

    return Decoder(key=f"other_{precision}", name=f"the other checkout, {precision}", command=command)
