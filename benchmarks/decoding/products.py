"""The limit below the graphs: the matrix products of an encoding and of the steps, bare."""

import statistics
import timeit
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx.parser
import onnxruntime as ort
from onnx import numpy_helper

from benchmarks.command import Context
from benchmarks.decoding.in_process import PRECISIONS, job_of, own_decoder, workers
from benchmarks.harness.results import Cell, Part
from benchmarks.workload import Workload

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


def limit(context: Context) -> Part:
    """The limit: bare matrix products and bare graphs.

    One thread, greedy. Products: onnxruntime's MatMul (fp32) or MatMulInteger (uint8 x int8) with a constant right
    side, in the shapes of encoder and steps, each timed by itself and added up. Graphs: the calls into encoder and
    step, replayed.
    """
    rows: list[list[Cell]] = []
    figures: dict[str, float] = {}
    for precision in PRECISIONS:
        with workers(own_decoder(context, precision, bare=True)) as pool:
            for size in (8,) if context.quick else BATCH_SIZES:
                job = pool.fastest(job_of(context), context.visit_seconds / 4, [size])
                graphs = statistics.median(pool.run(job)["ms"] for _ in range(NUM_VISITS)) / size
                bare = sum(_milliseconds(precision, size, one) for one in products(context.workload)) / size
                rows.append([precision, str(size), bare, graphs, f"{100 * bare / graphs:.0f} %"])
                figures |= {f"{precision}_products_{size}": bare, f"{precision}_graphs_{size}": graphs}
    columns = ["precision", "batch", "products, ms/sentence", "graphs, ms/sentence", "products' share"]
    return Part(columns=columns, rows=rows, figures=figures)


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
