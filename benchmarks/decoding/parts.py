"""Decoding in process, without peers: Attendant beside its limits, and beside another checkout of itself."""

import json
import statistics
import subprocess
import sys
import timeit
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime as ort
from onnx import numpy_helper

from attendant.runtime.errors import UserError
from benchmarks.command import Context
from benchmarks.decoding.in_process import PRECISIONS, SEARCHES, Decoder, job_of, one_by_one, own_decoder, throughput
from benchmarks.harness.measurement import figures, measure
from benchmarks.harness.process import output_of
from benchmarks.harness.results import Cell, Part
from benchmarks.job import Job
from benchmarks.workload import Workload

LAYOUTS = ((1, 1), (2, 1), (1, 2))
"""Workers (processes) and threads of each."""

NUM_ROWS = 64
MAKE_BUNDLE = (
    "import json, pathlib, sys; from benchmarks import mt; "
    "print(mt.mt_bundle(mt.Workload(**json.loads(sys.argv[1])), pathlib.Path(sys.argv[2])))"
)
"""What every checkout of this project since version 0.1 understands."""

BATCH_SIZES = (1, 8, 64, 256)
NUM_REPEATS = 7
NUM_VISITS = 2
NUM_READINGS = 200
NUM_GATES = 4
OPERATORS = {
    "int8": ("MatMulInteger(left, right)", "uint8", "int32", np.uint8, np.int8),
    "fp32": ("MatMul(left, right)", "float", "float", np.float32, np.float32),
}
"""The operator, ONNX's types of its left side and its product, and numpy's of its two sides."""


def limit(context: Context) -> Part:
    """The limit: bare matrix products and bare graphs.

    One thread, greedy. Products: onnxruntime's MatMul (fp32) or MatMulInteger (uint8 x int8) with a constant right
    side, in the shapes of encoder and steps, each timed by itself and added up. Graphs: the calls into encoder and
    step, replayed.
    """
    sizes = (8,) if context.quick else BATCH_SIZES
    jobs = {f"_{size}": job_of(context, batch_size=size) for size in sizes}
    decoders = [own_decoder(context, precision, bare=True) for precision in PRECISIONS]
    replayed = measure([one.system(jobs, context.visit_seconds / 4) for one in decoders], NUM_VISITS)
    columns = ["precision", "batch", "products, ms/sentence", "graphs, ms/sentence", "products' share"]
    part = Part(columns=columns)
    for precision, found in zip(PRECISIONS, replayed, strict=True):
        for size in sizes:
            graphs = found.median(f"ms_{size}") / size
            bare = sum(_milliseconds(precision, size, one) for one in products(context.workload)) / size
            part.rows.append([precision, str(size), bare, graphs, f"{100 * bare / graphs:.0f} %"])
            part.figures.update({f"{precision}_products_{size}": bare, f"{precision}_graphs_{size}": graphs})
    return part


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
    systems = [one.system(jobs, context.visit_seconds) for pair in decoders for one in pair]
    found = measure(systems, context.num_rounds)
    revision = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(revision, capture_output=True, text=True, check=False).stdout.strip()
    columns = ["", "sentences/s", "slowest-fastest", "the other's", "slowest-fastest", "ratio"]
    part = Part(columns=columns, figures=figures(found), note=f"The other: {commit or folder.name}.")
    for precision, ours, theirs in zip(PRECISIONS, found[::2], found[1::2], strict=True):
        for point in jobs:
            new, old = ours.at(point), theirs.at(point)
            cells = [cell for one in (new, old) for cell in (one.median("speed"), one.spread("speed"))]
            ratio = f"{new.median('speed') / old.median('speed'):.3f} x"
            part.rows.append([f"{precision}, {point.removeprefix(': ')}", *cells, ratio])
    return part


def _other_decoder(context: Context, folder: Path, precision: str) -> Decoder:
    """Attendant by the code of another checkout: its worker takes the same arguments and jobs as ours."""
    python = ["env", f"--chdir={folder}", f"PYTHONPATH={folder}:{folder / 'client'}", sys.executable]

    def command() -> Sequence[str]:
        workload, cache = json.dumps(asdict(context.workload)), str(context.cache / "against")
        path = output_of([*python, "-c", MAKE_BUNDLE, workload, cache]).strip().splitlines()[-1]
        return [*python, "-m", "benchmarks.decoding.attendant_worker", path, precision, "1"]

    return Decoder(key=f"other_{precision}", name=f"the other checkout, {precision}", command=command)


@dataclass(frozen=True, slots=True)
class Product:
    """[positions x sentences, depth] x [depth, columns], so many times for a batch of sentences."""

    depth: int
    columns: int
    times: int
    positions: int = 1


def products(workload: Workload) -> list[Product]:
    """Those of one batch from its encoding to its last step; attention, which has no weights, is left out."""
    embedding, hidden, num_tokens = workload.embedding_size, workload.hidden_size, workload.num_tokens
    half = hidden // 2
    found = [Product(hidden, hidden, 2), Product(hidden, hidden, 1, num_tokens)]  # bridge; keys
    for layer in range(workload.num_layers):
        read = embedding if layer == 0 else hidden
        # Each direction reads all positions at once; its own state comes one position after the other.
        found += [Product(read, NUM_GATES * half, 2, num_tokens), Product(half, NUM_GATES * half, 2 * num_tokens)]
        fed = embedding + hidden if layer == 0 else hidden
        found.append(Product(fed + hidden, NUM_GATES * hidden, num_tokens))
    return [*found, Product(2 * hidden, hidden, num_tokens), Product(hidden, workload.vocabulary_size, num_tokens)]


def reading_ms(workload: Workload) -> float:
    """What one core takes to read the int8 weights of a sentence's steps: no step of one row takes less.

    As many bytes as a step has are added up, again and again. The encoder's weights, a fiftieth of all, are left out.
    """
    per_step = sum(one.depth * one.columns for one in products(workload) if one.times == workload.num_tokens)
    weights = np.zeros(per_step // np.dtype(np.int64).itemsize, np.int64)
    return workload.num_tokens * _median_ms(lambda: np.add.reduce(weights), NUM_READINGS)


def _milliseconds(precision: str, batch_size: int, product: Product) -> float:
    """The median duration of one product on one thread, as often as the batch needs it."""
    operator, left_type, out_type, left_dtype, right_dtype = OPERATORS[precision]
    random = np.random.default_rng(1)
    left = random.integers(1, 127, (batch_size * product.positions, product.depth)).astype(left_dtype)
    right = random.integers(-127, 127, (product.depth, product.columns)).astype(right_dtype)
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> product ({left_type}[R, D] left) => ({out_type}[R, C] product)'
        f"{{ product = {operator} }}"
    )
    model.graph.initializer.append(numpy_helper.from_array(right, "right"))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return product.times * _median_ms(lambda: session.run(None, {"left": left}), NUM_REPEATS)


def _median_ms(call: Callable[[], object], num_repeats: int) -> float:
    """The first call is not counted."""
    return 1e3 * statistics.median(timeit.repeat(call, number=1, repeat=num_repeats + 1)[1:])
