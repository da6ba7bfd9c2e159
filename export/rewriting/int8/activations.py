"""Activations as bytes: the inputs of products of integers.

A value x is stored as codes q = 128 + round(x / step) in uint8, step = largest / 127. Where the graph bounds
x (rewriting/bounds.py), the step is fixed; elsewhere each row has its own. It is never taken of a whole tensor: a
request's answer would then depend on its batch-mates.

uint8 with the zero at 128, since ONNX Runtime's kernels for signed activations are ten times slower.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from attendant.export.rewriting.bounds import Bounds
from attendant.export.rewriting.graph import (
    GraphEditor,
    constant,
    given,
    keeps_last_axis,
    made_by,
    operand,
    shape_of,
    size_of,
)
from attendant.runtime.bundle.graph_content import LARGEST_FACTOR

ZERO: Final = 128
LARGEST_CODE: Final = 127
CALIBRATION_CODES: Final = (0, 255)
SMALLEST_LARGEST: Final = 1e-12
"""The scale of a row of zeros, which any scale suits."""

MAX_FIXED_BOUND: Final = 8.0
"""Larger bounds come from sums, which rarely reach them: there a scale per row rounds less."""


@dataclass(frozen=True, slots=True)
class Codes:
    """A quantized value.

    Attributes:
        value: the codes, uint8, in the quantized value's own shape [..., K].
        steps: [K] float64, the size of one step of each feature.
        row_scale: [..., 1] float32, by which each row's steps are multiplied on top; None: nothing, the steps are
            fixed.
    """

    value: ir.Value
    steps: NDArray[np.float64]
    row_scale: ir.Value | None = None


class Activations:
    """Quantizes values, each once however many products read it."""

    def __init__(self, editor: GraphEditor, bounds: Bounds) -> None:
        self._editor = editor
        self._bounds = bounds
        self._made: dict[ir.Value, Codes] = {}
        self._tables: dict[tuple[ir.Value, tuple[int, ...]], Codes] = {}
        self._numbers: dict[float, ir.Value] = {}
        self.zero = editor.add_constant(np.uint8(ZERO), "zero")

    def set(self, value: ir.Value, codes: Codes) -> None:
        """Notes codes of `value` that the graph has already."""
        self._made[value] = codes

    def of(self, value: ir.Value) -> Codes:
        """The codes of a value."""
        if value not in self._made:
            self._made[value] = self._moved(value) or self._fixed(value) or self._per_row(value)
        return self._made[value]

    def calibrated(self, value: ir.Value) -> Codes:
        """The codes [..., 2 + K] uint8 of a value [..., K], behind calibration constants: the least and largest code.

        A node that takes its scale from the range of its input takes the same scale of all such codes.
        """
        node = value.producer()
        if node is not None:
            if keeps_last_axis(node):
                codes = self.calibrated(operand(node))
                perm = node.attributes.get_ints("perm", ())
                return Codes(self._editor.add("Transpose", [codes.value], perm=perm), codes.steps)
            table = constant(operand(node)) if node.op_type == "Gather" else None
            if table is not None and table.ndim == 2 and not node.attributes.get_int("axis", 0):
                codes = self._table(operand(node), CALIBRATION_CODES)
                return Codes(self._editor.add("Gather", [codes.value, node.inputs[1]]), codes.steps)
        codes = self.of(value)
        editor = self._editor
        leading = editor.add("Slice", [editor.add("Shape", [codes.value]), editor.integers(0), editor.integers(-1)])
        shape = editor.add("Concat", [leading, editor.integers(len(CALIBRATION_CODES))], axis=0)
        ends = editor.add_constant(np.array(CALIBRATION_CODES, np.uint8), "calibration")
        everywhere = Codes(editor.add("Expand", [ends, shape]), np.ones(len(CALIBRATION_CODES)))
        return self.side_by_side([everywhere, codes])

    def uniform(self, value: ir.Value) -> Codes:
        """The codes of a value, all features of which have steps of one size."""
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
        """The codes of a value in steps of one size."""
        return self._editor.add("QuantizeLinear", [value, self.number(step), self.zero])

    def values(self, codes: ir.Value, step: float) -> ir.Value:
        """The values float32 that codes of one step stand for: for nodes that take no codes."""
        return self._editor.add("DequantizeLinear", [codes, self.number(step), self.zero])

    def number(self, value: float) -> ir.Value:
        """A constant float32."""
        if value not in self._numbers:
            self._numbers[value] = self._editor.add_constant(np.float32(value), "number")
        return self._numbers[value]

    def side_by_side(self, parts: Sequence[Codes]) -> Codes:
        """Parts of fixed steps as one value, each in its own steps."""
        assert all(part.row_scale is None for part in parts), "what has a scale of its own stands alone"
        values: list[ir.Value] = []
        for part in parts:
            # Of what was joined before, the parts: a node less to run.
            whole = made_by(part.value, "Concat")
            values += [part.value] if whole is None or whole.attributes.get_int("axis", None) != -1 else given(whole)
        joined = self._editor.add("Concat", values, axis=-1)
        return Codes(joined, np.concatenate([part.steps for part in parts]))

    def _moved(self, value: ir.Value) -> Codes | None:
        """Codes of values that a node only moves: the codes are moved instead, as bytes are cheaper to move."""
        node = value.producer()
        if node is None:
            return None
        if joins_features(node):
            parts = [self.of(one) for one in given(node)]
            return None if any(part.row_scale is not None for part in parts) else self.side_by_side(parts)
        moves_rows = node.op_type in ("Gather", "GatherElements") and (
            node.attributes.get_int("axis", 0) < len(shape_of(operand(node))) - 1
        )
        if not moves_rows and not keeps_last_axis(node):
            return None
        origin = operand(node)
        codes = self._table(origin) if constant(origin) is not None else self.of(origin)
        if codes.row_scale is not None:
            return None
        attributes = dict[str, Any](node.attributes)
        return replace(codes, value=self._editor.add(node.op_type, [codes.value, *node.inputs[1:]], **attributes))

    def _table(self, table: ir.Value, ends: tuple[int, ...] = ()) -> Codes:
        """The codes of a table of embeddings [V, K], with a step for each feature, behind `ends` in each row."""
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
        """Each row in steps that suit the largest of its values."""
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
    """Whether a node lays values side by side along their last axis."""
    last = len(shape_of(node.outputs[0])) - 1 if node.op_type == "Concat" else None
    return last is not None and node.attributes.get_int("axis", None) in (-1, last)
