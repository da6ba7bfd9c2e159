"""Decoding in process, without peers: Attendant beside its own graphs, and beside another checkout of itself."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from attendant.runtime.errors import UserError
from benchmarks.command import Context
from benchmarks.decoding.in_process import BEAM_SIZE, COLUMNS, Decoder, job_of, one_by_one, own_decoder, throughput
from benchmarks.harness.environment import output_of
from benchmarks.harness.measurement import figures, measure
from benchmarks.harness.results import Cell, Part
from benchmarks.job import Job

LAYOUTS = ((1, 1), (2, 1), (1, 2))
"""Workers (processes) and threads of each."""

SEARCHES = {"greedy": 1, f"beam {BEAM_SIZE}": BEAM_SIZE}
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
    rows: list[list[Cell]] = []
    found: dict[str, float] = {}
    decoders = [
        _apart(own_decoder(context, precision, num_workers=num_workers, num_threads=num_threads, bare=bare))
        for precision in ("int8", "fp32")
        for num_workers, num_threads in (LAYOUTS[:1] if context.quick else LAYOUTS)
        for bare in (False, True)
    ]
    for search, beam_size in SEARCHES.items():
        part = throughput(context, decoders, beam_size)
        rows += [[search, *row] for row in part.rows]
        found |= {f"{search}, {name}": value for name, value in part.figures.items()}
    return Part(columns=["search", *COLUMNS], rows=rows, figures=found)


def alone(context: Context) -> Part:
    """One sentence alone, in process.

    Median latency, greedy; the bare graphs' is what is left without search and bookkeeping.
    """
    decoders = [
        _apart(own_decoder(context, precision, num_threads=num_threads, bare=bare))
        for precision in ("int8", "fp32")
        for bare in (False, True)
        for num_threads in (1, 2)
    ]
    return one_by_one(context, decoders)


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
        rows_job = job_of(context, num_sentences=256 // size, beam_size=size, batch_size=NUM_ROWS // size)
        jobs[f"{search}, {NUM_ROWS} rows"] = rows_job
        jobs[f"{search}, 1 sentence"] = job_of(context, num_sentences=20 // size, beam_size=size, batch_size=1)
    precisions = ("int8", "fp32")
    decoders = [(own_decoder(context, one), _other_decoder(context, folder.resolve(), one)) for one in precisions]
    named = {f": {name}": job for name, job in jobs.items()}
    systems = [one.system(named, context.visit_seconds, fixed=True) for pair in decoders for one in pair]
    found = measure(systems, num_rounds=context.num_rounds, say=context.say)
    if problems := [one.problem for one in found if one.problem is not None]:
        raise UserError(f"--against {folder}: {problems[0]}")
    rows: list[list[Cell]] = []
    for precision, ours, theirs in zip(precisions, found[::2], found[1::2], strict=True):
        for name in jobs:
            new, old = (one.median(f"speed: {name}") for one in (ours, theirs))
            spreads = [one.spread(f"speed: {name}") for one in (ours, theirs)]
            rows.append([f"{precision}, {name}", new, spreads[0], old, spreads[1], f"{new / old:.3f} x"])
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
