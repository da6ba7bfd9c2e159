"""The limit below the graphs: the matrix products of an encoding and of the steps, bare."""

import statistics
import time
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from benchmarks.command import Context
from benchmarks.decoding.job import Job
from benchmarks.decoding.measurement import measure
from benchmarks.decoding.system import bare_graphs
from benchmarks.results import Cell, Part
from benchmarks.training.workload import Workload

BATCH_SIZES = (1, 8, 64, 256)
NUM_REPEATS = 7
NUM_GATES = 4
OPSET = 18


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
    """Bare products beside the bare graphs, on one thread."""
    rows: list[list[Cell]] = []
    figures: dict[str, float] = {}
    for precision in ("int8", "fp32"):
        for batch_size in (8,) if context.quick else BATCH_SIZES:
            product_seconds = sum(
                product.times * _seconds(precision, batch_size * product.positions, product)
                for product in products(context.workload)
            )
            graph_seconds = _graph_seconds(context, precision, batch_size)
            ms = [1e3 * seconds / batch_size for seconds in (product_seconds, graph_seconds)]
            rows.append([precision, str(batch_size), *ms, f"{100 * ms[0] / ms[1]:.0f} %"])
            figures |= {f"{precision}_products_{batch_size}": ms[0], f"{precision}_graphs_{batch_size}": ms[1]}
    return Part(
        title="The limit: bare matrix products and bare graphs",
        about=(
            "One thread, greedy. Products: onnxruntime's MatMul (fp32) or MatMulInteger (uint8 x int8) with a constant "
            "right side, in the shapes of encoder and steps, each timed by itself and added up. Graphs: the calls into "
            "encoder and step, replayed."
        ),
        columns=["precision", "batch", "products, ms/sentence", "graphs, ms/sentence", "products' share"],
        rows=rows,
        figures=figures,
    )


def _seconds(precision: str, num_rows: int, product: Product) -> float:
    """The median duration of one product on one thread."""
    random = np.random.default_rng(1)
    shape = product.depth, product.columns
    if precision == "int8":
        left_type, out_type, operator = TensorProto.UINT8, TensorProto.INT32, "MatMulInteger"
        weight, left = (
            random.integers(-127, 127, shape, np.int8),
            random.integers(0, 255, (num_rows, shape[0]), np.uint8),
        )
    else:
        left_type, out_type, operator = TensorProto.FLOAT, TensorProto.FLOAT, "MatMul"
        weight, left = random.normal(size=shape).astype(np.float32), random.normal(size=(num_rows, shape[0]))
        left = left.astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node(operator, ["left", "right"], ["product"])],
        "product",
        [helper.make_tensor_value_info("left", left_type, ["R", shape[0]])],
        [helper.make_tensor_value_info("product", out_type, ["R", shape[1]])],
        [numpy_helper.from_array(weight, "right")],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=onnx.IR_VERSION_2023_5_5
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    durations = []
    for _ in range(NUM_REPEATS + 1):
        began = time.perf_counter()
        session.run(None, {"left": left})
        durations.append(time.perf_counter() - began)
    return statistics.median(durations[1:])


def _graph_seconds(context: Context, precision: str, batch_size: int) -> float:
    """Of a batch, encoder and all steps."""
    system = bare_graphs(context.bundle, precision, num_workers=1, num_threads=1)
    workload = context.workload
    job = Job(
        num_sentences=batch_size,
        num_tokens=workload.num_tokens,
        vocabulary_size=workload.vocabulary_size,
        batch_size=1 if batch_size == 1 else batch_size,
    )
    fixed = replace(system, batch_sizes=(batch_size,))
    (found,) = measure([fixed], job, num_rounds=2, visit_seconds=context.visit_seconds / 4, say=lambda _: None)
    if found.latency is None:
        raise RuntimeError(found.problem)
    return found.latency
