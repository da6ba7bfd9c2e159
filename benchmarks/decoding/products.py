"""The limit below the graphs: the matrix products of an encoding and of the steps, bare."""

import statistics
import time
from dataclasses import dataclass

import numpy as np
import onnx.parser
import onnxruntime as ort
from onnx import numpy_helper

from benchmarks.command import Context
from benchmarks.decoding.in_process import job_of, own_decoder, workers
from benchmarks.harness.results import Cell, Part
from benchmarks.workload import Workload

BATCH_SIZES = (1, 8, 64, 256)
NUM_REPEATS = 7
NUM_VISITS = 2
NUM_GATES = 4
OPERATORS = {"int8": ("MatMulInteger", "uint8", "int32"), "fp32": ("MatMul", "float", "float")}
"""The operator, and the types of its left side and its product."""


@dataclass(frozen=True, slots=True)
class Product:
    """[factor x rows, depth] x [depth, columns], `times` times per sentence batch."""

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


def limit(context: Context) -> Part:
    """The limit: bare matrix products and bare graphs.

    One thread, greedy. Products: onnxruntime's MatMul (fp32) or MatMulInteger (uint8 x int8) with a constant right
    side, in the shapes of encoder and steps, each timed by itself and added up. Graphs: the calls into encoder and
    step, replayed.
    """
    rows: list[list[Cell]] = []
    figures: dict[str, float] = {}
    for precision in ("int8", "fp32"):
        with workers(own_decoder(context, precision, bare=True)) as pool:
            for batch_size in (8,) if context.quick else BATCH_SIZES:
                job = pool.fastest(job_of(context), context.visit_seconds / 4, [batch_size])
                graphs = statistics.median(pool.run(job)["ms"] for _ in range(NUM_VISITS)) / batch_size
                seconds = sum(
                    one.times * _seconds(precision, batch_size * one.positions, one)
                    for one in products(context.workload)
                )
                bare = 1e3 * seconds / batch_size
                rows.append([precision, str(batch_size), bare, graphs, f"{100 * bare / graphs:.0f} %"])
                figures |= {f"{precision}_products_{batch_size}": bare, f"{precision}_graphs_{batch_size}": graphs}
    columns = ["precision", "batch", "products, ms/sentence", "graphs, ms/sentence", "products' share"]
    return Part(columns=columns, rows=rows, figures=figures)


def _seconds(precision: str, num_rows: int, product: Product) -> float:
    """The median duration of one product on one thread."""
    random = np.random.default_rng(1)
    shape = product.depth, product.columns
    if precision == "int8":
        weight, left = (
            random.integers(-127, 127, shape, np.int8),
            random.integers(0, 255, (num_rows, shape[0]), np.uint8),
        )
    else:
        weight, left = (random.normal(size=size).astype(np.float32) for size in (shape, (num_rows, shape[0])))
    operator, left_type, out_type = OPERATORS[precision]
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> product ({left_type}[R, D] left) => ({out_type}[R, C] product)'
        f"{{ product = {operator}(left, right) }}"
    )
    model.graph.initializer.append(numpy_helper.from_array(weight, "right"))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    durations = []
    for _ in range(NUM_REPEATS + 1):
        began = time.perf_counter()
        session.run(None, {"left": left})
        durations.append(time.perf_counter() - began)
    return statistics.median(durations[1:])
