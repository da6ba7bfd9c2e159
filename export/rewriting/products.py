"""Products of integers: activations as bytes, the model's matrices, and the output layer's candidates.

Shapes: K inputs, N outputs; R rows, V target vocabulary, W the width of a block of symbols.

An activation x is stored as codes q = 128 + round(x / step) in uint8, step = largest / 127. Where the graph bounds x
(bounds.py), the step is fixed; elsewhere each row has its own. A whole tensor never shares one: a request's answer
would then depend on its batch. The zero is 128, since ONNX Runtime's kernels for signed activations are ten times
slower.

y = x W + b becomes (codes of x) times (codes of W) in int32, and one multiplication per element. Integers are summed
exactly, so a row gets the same bits in any order of summation and in any batch. W has one scale per output column; the
steps of x are folded into W first, so that parts of x with different steps make one product.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from attendant.export.graph import (
    GraphEditor,
    constant,
    has_size,
    inputs_of,
    keeps_last_axis,
    made_by,
    operand,
    shape_of,
    size_of,
)
from attendant.export.rewriting.bounds import Bounds
from attendant.runtime.bundle.graph_content import LARGEST_FACTOR
from attendant.training.model.readout import IMPOSSIBLE

ZERO: Final = 128
LARGEST_CODE: Final = 127
CALIBRATION_CODES: Final = (0, 255)
SMALLEST_LARGEST: Final = 1e-12  # The scale of a row of zeros.
MAX_FIXED_BOUND: Final = 8.0  # Larger bounds come from sums, which rarely reach them: a scale per row rounds less.


@dataclass(frozen=True, slots=True)
class Codes:
    """A quantized value.

    Attributes:
        value: the codes, uint8, in the quantized value's own shape [..., K].
        steps: [K] float64, the size of one step of each feature.
        row_scale: [..., 1] float32, a further factor of each row's steps; None if the steps are fixed.
    """

    value: ir.Value
    steps: NDArray[np.float64]
    row_scale: ir.Value | None = None


class Activations:
    """Quantizes values, each once for all products that read it."""

    def __init__(self, editor: GraphEditor, bounds: Bounds) -> None:
        self._editor = editor
        self._bounds = bounds
        self._made: dict[ir.Value, Codes] = {}
        self._tables: dict[tuple[ir.Value, tuple[int, ...]], Codes] = {}
        self._numbers: dict[float, ir.Value] = {}
        self.zero = editor.add_constant(np.uint8(ZERO), "zero")

    def set(self, value: ir.Value, codes: Codes) -> None:
        """Sets the codes of `value` to ones that the graph already has."""
        self._made[value] = codes

    def of(self, value: ir.Value) -> Codes:
        """Returns the codes of a value."""
        if value not in self._made:
            self._made[value] = self._moved(value) or self._fixed(value) or self._per_row(value)
        return self._made[value]

    def calibrated(self, value: ir.Value) -> Codes:
        """Returns the codes [..., 2 + K] uint8 of a value [..., K], after two constants: the least and largest code.

        A node that takes its scale from the range of its input takes the same scale of all such codes. Codes with a
        scale per row are returned without the constants.
        """
        node = value.producer()
        if node is not None:
            if keeps_last_axis(node):
                codes = self.calibrated(operand(node))
                perm = node.attributes.get_ints("perm", ())
                return replace(codes, value=self._editor.add("Transpose", [codes.value], perm=perm))
            table = constant(operand(node)) if node.op_type == "Gather" else None
            if table is not None and table.ndim == 2 and not node.attributes.get_int("axis", 0):
                codes = self._table(operand(node), CALIBRATION_CODES)
                return Codes(self._editor.add("Gather", [codes.value, node.inputs[1]]), codes.steps)
        codes = self.of(value)
        if codes.row_scale is not None:
            return codes
        editor = self._editor
        leading = editor.add("Slice", [editor.add("Shape", [codes.value]), editor.integers(0), editor.integers(-1)])
        shape = editor.add("Concat", [leading, editor.integers(len(CALIBRATION_CODES))], axis=0)
        ends = editor.add_constant(np.array(CALIBRATION_CODES, np.uint8), "calibration")
        everywhere = Codes(editor.add("Expand", [ends, shape]), np.ones(len(CALIBRATION_CODES)))
        return self.side_by_side([everywhere, codes])

    def uniform(self, value: ir.Value) -> Codes:
        """Returns the codes of a value in steps of one size."""
        codes = self.of(value)
        if (codes.steps == codes.steps[0]).all():
            return codes
        return self._fixed(value) or self._per_row(value)

    def factors(self, value: ir.Value) -> Codes:
        """Returns the codes of a value as int8 from -64 to 64, with the zero at 0, in steps of one size.

        As the factors of a product they may not be larger (runtime/bundle/graph_content.py). So their steps are twice
        those of `uniform`. The range is also clipped, which changes nothing but shows it to a reader of the graph.
        """
        codes, editor = self.uniform(value), self._editor
        zero = editor.add_constant(np.int8(0), "zero")
        # If a node has moved the codes, as bytes, from where they were made, they become values first.
        made = made_by(codes.value, "QuantizeLinear")
        values, step = (
            (self.values(codes.value, 1.0), 1.0) if made is None else (operand(made), _number(made.inputs[1]))
        )
        signed = editor.add("QuantizeLinear", [values, self.number(2 * step), zero])
        ends = (editor.add_constant(np.int8(end), "end") for end in (-LARGEST_FACTOR, LARGEST_FACTOR))
        return replace(codes, value=editor.add("Clip", [signed, *ends]), steps=2 * codes.steps)

    def quantized(self, value: ir.Value, step: float) -> ir.Value:
        """Returns the codes uint8 of a value in steps of this size."""
        return self._editor.add("QuantizeLinear", [value, self.number(step), self.zero])

    def values(self, codes: ir.Value, step: float) -> ir.Value:
        """Returns the values float32 of codes, for nodes that take no codes."""
        return self._editor.add("DequantizeLinear", [codes, self.number(step), self.zero])

    def number(self, value: float) -> ir.Value:
        """Returns a constant float32."""
        if value not in self._numbers:
            self._numbers[value] = self._editor.add_constant(np.float32(value), "number")
        return self._numbers[value]

    def side_by_side(self, parts: Sequence[Codes]) -> Codes:
        """Joins parts of fixed steps to one value, each in its own steps."""
        assert all(part.row_scale is None for part in parts), "values with a scale per row can't be joined"
        values: list[ir.Value] = []
        for part in parts:
            # The parts of a value that was joined before: one node less to run.
            whole = made_by(part.value, "Concat")
            values += (
                [part.value] if whole is None or whole.attributes.get_int("axis", None) != -1 else inputs_of(whole)
            )
        joined = self._editor.add("Concat", values, axis=-1)
        return Codes(joined, np.concatenate([part.steps for part in parts]))

    def _moved(self, value: ir.Value) -> Codes | None:
        """Returns the codes of a value that a node only moves, by moving codes instead: bytes are cheaper to move."""
        node = value.producer()
        if node is None:
            return None
        if joins_features(node):
            parts = [self.of(part) for part in inputs_of(node)] if all(map(has_size, inputs_of(node))) else []
            fixed = bool(parts) and all(part.row_scale is None for part in parts)
            return self.side_by_side(parts) if fixed else None
        moves_rows = node.op_type in ("Gather", "GatherElements") and (
            node.attributes.get_int("axis", 0) < len(shape_of(operand(node))) - 1
        )
        if not moves_rows and not keeps_last_axis(node):
            return None
        origin = operand(node)
        if not has_size(origin):
            return None
        codes = self._table(origin) if constant(origin) is not None else self.of(origin)
        if codes.row_scale is not None:
            return None
        attributes = dict[str, Any](node.attributes)
        return replace(codes, value=self._editor.add(node.op_type, [codes.value, *node.inputs[1:]], **attributes))

    def _table(self, table: ir.Value, ends: tuple[int, ...] = ()) -> Codes:
        """Returns the codes of a table of embeddings [V, K], with a step for each feature, after `ends` in each row."""
        if (table, ends) not in self._tables:
            values = constant(table)
            assert values is not None
            steps = np.maximum(np.abs(values.astype(np.float64)).max(0), SMALLEST_LARGEST) / LARGEST_CODE
            codes = np.rint(values / steps) + ZERO
            together = np.concatenate([np.tile(ends, (len(codes), 1)), codes], 1).astype(np.uint8)
            added = self._editor.add_constant(together, f"{table.name}.codes")
            self._tables[table, ends] = Codes(added, np.concatenate([np.ones(len(ends)), steps]))
        return self._tables[table, ends]

    def _fixed(self, value: ir.Value) -> Codes | None:
        largest = self._bounds.largest(self._editor.original(value))
        if largest is None or largest > MAX_FIXED_BOUND:
            return None
        step = max(largest, SMALLEST_LARGEST) / LARGEST_CODE
        return Codes(self.quantized(value, step), np.full(size_of(value), step))

    def _per_row(self, value: ir.Value) -> Codes:
        """Returns codes with a scale per row, from the largest of its values."""
        editor = self._editor
        largest = editor.add("ReduceMax", [editor.add("Abs", [value]), editor.integers(-1)])
        floored = editor.add("Max", [largest, self.number(SMALLEST_LARGEST)])
        scale = editor.add("Div", [floored, self.number(LARGEST_CODE)])
        codes = editor.add("QuantizeLinear", [editor.add("Div", [value, scale]), self.number(1.0), self.zero])
        return Codes(codes, np.ones(size_of(value)), scale)


def _number(value: ir.Value | None) -> float:
    number = constant(value)
    assert number is not None, "the steps of codes are constants"
    return float(number)


def joins_features(node: ir.Node) -> bool:
    """Returns True if a node concatenates values along their last axis."""
    last = len(shape_of(node.outputs[0])) - 1 if node.op_type == "Concat" else None
    return last is not None and node.attributes.get_int("axis", None) in (-1, last)


LARGEST_WEIGHT: Final = 63
"""7 bits. A pair of products with activations of up to 255 then fits 16 signed bits, 2 * 255 * 63 < 32,768, so that
kernels are exact on processors without VNNI, too (runtime/bundle/graph_content.py proves it of a finished graph)."""

Matrix = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the plain graph: output [..., N] = inputs [..., K] times matrix [K, N] plus bias [N], float32.

    Its name is the matrix's, or the output's if constants were folded into the matrix.
    """

    name: str
    inputs: ir.Value
    matrix: Matrix
    bias: Matrix | None
    output: ir.Value


def quantized(matrix: Matrix) -> tuple[Matrix, Matrix]:
    """Returns codes [K, N] int8 of a matrix [K, N], and a scale [N] float32 per column.

    The largest weight of each column becomes +-LARGEST_WEIGHT.
    """
    largest = np.abs(matrix).max(0)
    scales = np.where(largest > 0, largest, 1.0) / LARGEST_WEIGHT
    return np.rint(matrix / scales).astype(np.int8), scales.astype(np.float32)


def multiply(
    editor: GraphEditor, activations: Activations, codes: Codes, matrix: Matrix, bias: Matrix | None, name: str
) -> ir.Value:
    """Returns x W + b float32 [..., N] from the codes of x, a matrix [K, N] and a bias [N]."""
    weights, scales = quantized(matrix.astype(np.float64) * codes.steps[:, None])
    added = None if bias is None else editor.add_constant(bias.astype(np.float32), f"{name}.bias")
    factors = (
        codes.value,
        editor.add_constant(weights, f"{name}.codes"),
        activations.number(1.0),
        editor.add_constant(scales, f"{name}.scales"),
        activations.zero,
    )
    if codes.row_scale is None:
        return editor.multiply_integers(*factors, added)
    scaled = editor.add("Mul", [editor.multiply_integers(*factors), codes.row_scale])
    return editor.add("Add", [scaled, added]) if added is not None else scaled


def find_product(node: ir.Node | None) -> Product | None:
    """Returns a node as a product of an activation with a constant matrix; None if it is not such a product."""
    if node is None or node.op_type not in ("Gemm", "MatMul"):
        return None
    matrix = constant(node.inputs[1])
    if matrix is None or matrix.ndim != 2 or constant(node.inputs[0]) is not None:
        return None
    bias = None
    if node.op_type == "Gemm":
        options = node.attributes
        if options.get_int("transA", 0) or options.get_float("alpha", 1.0) != 1 or options.get_float("beta", 1.0) != 1:
            return None
        matrix = matrix.T if options.get_int("transB", 0) else matrix
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            bias = constant(node.inputs[2])
            if bias is None:
                return None
    (output,) = node.outputs
    named, made = operand(node, 1).name or "", output.name or ""
    return Product(named if "." in named else made, operand(node), matrix, bias, output)


def replace_products(editor: GraphEditor, activations: Activations) -> dict[str, str]:
    """Replaces every product by one of integers; two that are added become one if their steps are fixed.

    Returns matrix -> the arithmetic of its product.
    """
    done: dict[str, str] = {}
    plain = list(editor.graph)
    for node in plain:
        if node.op_type == "Add":
            parts = [part for value in node.inputs if (part := find_product(made_by(value, "Gemm", "MatMul")))]
            if len(parts) == 2 and all(len(part.output.consumers()) == 1 and has_size(part.inputs) for part in parts):
                codes = [activations.of(part.inputs) for part in parts]
                if all(part.row_scale is None for part in codes):
                    editor.replace(node.outputs[0], _merged(editor, activations, parts, codes))
                    done |= {part.name: _described(part, coded) for part, coded in zip(parts, codes, strict=True)}
    for node in plain:
        product = find_product(node)
        # In graphs of other tools, the size of a value may not be known before they run.
        if product is not None and product.name not in done and has_size(product.inputs):
            inputs = activations.of(product.inputs)
            value = multiply(editor, activations, inputs, product.matrix, product.bias, product.name)
            editor.replace(product.output, value)
            done[product.name] = _described(product, inputs)
    return done


def _described(product: Product, inputs: Codes) -> str:
    scale = "in fixed steps" if inputs.row_scale is None else "with a scale per row"
    shape = list(product.matrix.shape)
    return f"int8 {shape} in codes to {LARGEST_WEIGHT} with a scale per column; inputs uint8 {scale}"


def _merged(
    editor: GraphEditor, activations: Activations, parts: Sequence[Product], codes: Sequence[Codes]
) -> ir.Value:
    """Returns x W + h U + b as [x; h] [W; U] + b, for codes x and h of fixed steps."""
    joined = activations.side_by_side(codes)
    biases = [part.bias for part in parts if part.bias is not None]
    bias = np.sum(biases, axis=0) if biases else None
    return multiply(editor, activations, joined, np.concatenate([part.matrix for part in parts]), bias, parts[0].name)


BLOCK: Final = 64  # W symbols.
MIN_VOCABULARY: Final = 32 * BLOCK  # For smaller ones, one TopK is as fast.


def replace_top(editor: GraphEditor) -> None:
    """Replaces the TopK over a large vocabulary by two stages: blocks, then symbols.

    TopK keeps a heap while it walks over every symbol; the maximum of each block is computed three times as fast. The K
    most probable symbols are in the K blocks of the largest maxima, since a symbol of any other block is preceded by
    one of each of these. The result is TopK's own, ties by the lower id included.

    The symbols are filled up to whole blocks, so the output layer must still be a product of floats.
    """
    # A user's module may have others.
    top = editor.graph.outputs[0].producer()
    assert top is not None and top.op_type == "TopK", f"{top} makes the candidates"
    log_probs, count = operand(top, 0), operand(top, 1)
    size = size_of(log_probs)
    if size < MIN_VOCABULARY:
        return
    if size % BLOCK:
        log_probs = _filled_up(editor, log_probs, -size % BLOCK)
    integers = editor.integers
    blocks = editor.add("Reshape", [log_probs, integers(0, -1, BLOCK)])
    maxima = editor.add("ReduceMax", [blocks, integers(-1)], keepdims=0)
    num_blocks = -(-size // BLOCK)
    enough = editor.add("Min", [count, integers(num_blocks)])
    _, chosen = editor.add_many("TopK", [maxima, enough], 2)
    # In the vocabulary's order, so that the lower id comes first among equals.
    chosen, _ = editor.add_many("TopK", [chosen, enough], 2, largest=0)
    inside = editor.add("GatherND", [blocks, editor.add("Unsqueeze", [chosen, integers(-1)])], batch_dims=1)
    values, places = editor.add_many("TopK", [editor.add("Reshape", [inside, integers(0, -1)]), count], 2)
    width = editor.add_constant(np.int64(BLOCK), "width")
    numbers = editor.add("Div", [places, width])
    skipped = editor.add("Sub", [editor.add("GatherElements", [chosen, numbers], axis=1), numbers])
    ids = editor.add("Add", [places, editor.add("Mul", [skipped, width])])
    editor.replace(top.outputs[0], values)
    editor.replace(top.outputs[1], ids)


def _filled_up(editor: GraphEditor, log_probs: ir.Value, count: int) -> ir.Value:
    """Returns log-probabilities of `count` more symbols, which are never chosen.

    The output layer of our own models gets more columns, which costs nothing. Graphs of users may end in other ways.
    """
    value = log_probs
    while (node := value.producer()) is not None and node.op_type != "Gemm":
        value = operand(node)
    if node is None:
        # Below the log-probabilities of banned symbols, too.
        least = editor.add_constant(np.finfo(np.float32).min, "least")
        return editor.add("Pad", [log_probs, editor.integers(0, 0, 0, count), least])
    assert len(node.inputs) == 3, "the output layer is a product with a bias"
    matrix, bias = constant(node.inputs[1]), constant(node.inputs[2])
    assert matrix is not None and bias is not None
    wider = np.pad(matrix, ((0, count), (0, 0))), np.pad(bias, (0, count), constant_values=IMPOSSIBLE)
    for place, values in enumerate(wider, 1):
        node.replace_input_with(place, editor.add_constant(values, operand(node, place).name or ""))
    return log_probs
