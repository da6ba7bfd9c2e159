"""Activations as bytes: what a product of integers takes.

A value x is stored as codes q = 128 + round(x / step) in uint8, step = largest / 127. The largest is known beforehand
(rewriting/bounds.py) and the step fixed, or it is taken of each row by itself. Never of a whole tensor: a request's
answer would then depend on its neighbours.

uint8 with the zero at 128, since ONNX Runtime's kernels for signed activations are ten times slower.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from attendant.export.rewriting.bounds import Bound, Bounds
from attendant.export.rewriting.graph import GraphEditor, attribute

ZERO: Final = 128
LARGEST_CODE: Final = 127
PINNED_CODES: Final = (0, 255)
SMALLEST_LARGEST: Final = 1e-12
"""A row of zeros has no scale of its own; anything will do."""

MAX_FIXED_BOUND: Final = 8.0
"""Bounds above this come from sums, which rarely reach them: a scale of the row's own then loses less."""


@dataclass(frozen=True, slots=True)
class Codes:
    """A quantized value.

    Attributes:
        name: the codes, uint8, in the value's own shape [..., K].
        steps: [K] the size of one step of each feature.
        row_scale: [..., 1] by which each row's steps are multiplied on top; None: nothing, the steps are fixed.
    """

    name: str
    steps: NDArray[np.float64]
    row_scale: str | None = None


class Activations:
    """Quantizes values, each once however many products read it."""

    def __init__(self, editor: GraphEditor, bounds: Bounds) -> None:
        self._editor = editor
        self._bounds = bounds
        self._made: dict[str, Codes] = {}
        self._tables: dict[str, Codes] = {}
        self._numbers: dict[float, str] = {}
        self.zero = editor.add_constant(np.uint8(ZERO), "zero")

    def set(self, value: str, codes: Codes) -> None:
        """Says what codes of `value` there are already."""
        self._made[value] = codes

    def of(self, value: str) -> Codes:
        """The codes of a value."""
        if value not in self._made:
            self._made[value] = self._moved(value) or self._fixed(value) or self._per_row(value)
        return self._made[value]

    def pinned(self, value: str) -> Codes:
        """The codes [..., 2 + K] of a value [..., K], with the smallest and the largest of all codes before them.

        Who takes a scale from what it is given, takes the same one of all such codes.
        """
        node = self._editor.producer(value)
        if node is not None:
            order = attribute(node, "perm", [])
            if node.op_type == "Transpose" and order[-1] == len(order) - 1:
                codes = self.pinned(node.input[0])
                return Codes(self._editor.add("Transpose", [codes.name], perm=order), codes.steps)
            if node.op_type == "Gather" and not attribute(node, "axis", 0) and self._is_table(node.input[0]):
                table, steps = self._pinned_table(node.input[0])
                return Codes(self._editor.add("Gather", [table, node.input[1]]), steps)
        codes = self.of(value)
        editor = self._editor
        leading = editor.add("Slice", [editor.add("Shape", [codes.name]), editor.integers(0), editor.integers(-1)])
        shape = editor.add("Concat", [leading, editor.integers(len(PINNED_CODES))], axis=0)
        pins = editor.add("Expand", [editor.add_constant(np.array(PINNED_CODES, np.uint8), "pins"), shape])
        return self._side_by_side([Codes(pins, np.ones(len(PINNED_CODES))), codes])

    def _is_table(self, name: str) -> bool:
        table = self._editor.constant(name)
        return table is not None and table.ndim == 2

    def _pinned_table(self, name: str) -> tuple[str, NDArray[np.float64]]:
        codes, steps = self._table_codes(name)
        pins = np.broadcast_to(np.array(PINNED_CODES, np.uint8), (len(codes), len(PINNED_CODES)))
        table = self._editor.add_constant(np.concatenate([pins, codes], 1), f"{name}.codes")
        return table, np.concatenate([np.ones(len(PINNED_CODES)), steps])

    def bound(self, value: str) -> Bound | None:
        """The bound of a value, or of what it replaced."""
        return self._bounds.of(self._editor.original(value))

    def uniform(self, value: str) -> Codes:
        """The codes of a value, all features of which have steps of one size."""
        codes = self.of(value)
        if (codes.steps == codes.steps[0]).all():
            return codes
        return self._fixed(value) or self._per_row(value)

    def signed(self, value: str) -> Codes:
        """The codes of a value as int8, with the zero at 0, in steps of one size."""
        codes = self.uniform(value)
        none = self._editor.add_constant(np.int8(0), "none")
        made = self._editor.made_by(codes.name, "QuantizeLinear")
        # None: moved, as bytes, from where they were made.
        inputs = [self.values(codes.name, 1.0), self.number(1.0)] if made is None else list(made.input[:2])
        return replace(codes, name=self._editor.add("QuantizeLinear", [*inputs, none]))

    def quantized(self, value: str, step: float) -> str:
        """The codes of a value in steps of one size."""
        return self._editor.add("QuantizeLinear", [value, self.number(step), self.zero])

    def values(self, codes: str, step: float) -> str:
        """The values that codes of one step stand for: for who takes no codes."""
        return self._editor.add("DequantizeLinear", [codes, self.number(step), self.zero])

    def number(self, value: float) -> str:
        """A constant float32."""
        if value not in self._numbers:
            self._numbers[value] = self._editor.add_constant(np.float32(value), "number")
        return self._numbers[value]

    def _moved(self, value: str) -> Codes | None:
        """Values that only stand in another place than those they come from: bytes are cheaper to move than floats."""
        node = self._editor.producer(value)
        if node is None:
            return None
        if node.op_type == "Concat" and attribute(node, "axis") in (-1, len(self._editor.shape(value)) - 1):
            return self._joined(node.input)
        order = attribute(node, "perm", [])
        moves_rows = node.op_type in ("Gather", "GatherElements") and attribute(node, "axis", 0) < self._last(node)
        if not moves_rows and not (node.op_type == "Transpose" and order[-1] == len(order) - 1):
            return None
        given = node.input[0]
        codes = self._table(given) if self._editor.constant(given) is not None else self.of(given)
        if codes.row_scale is not None:
            return None
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        return Codes(self._editor.add(node.op_type, [codes.name, *node.input[1:]], **attributes), codes.steps)

    def _last(self, node: onnx.NodeProto) -> int:
        """The last axis of what a node is given."""
        return len(self._editor.shape(node.input[0])) - 1

    def _joined(self, values: Sequence[str]) -> Codes | None:
        """Parts side by side, each in its own steps; None where one has a scale of its rows' own."""
        parts = [self.of(name) for name in values]
        return None if any(part.row_scale is not None for part in parts) else self._side_by_side(parts)

    def _side_by_side(self, parts: Sequence[Codes]) -> Codes:
        assert all(part.row_scale is None for part in parts), "what has a scale of its own stands alone"
        joined = self._editor.add("Concat", [part.name for part in parts], axis=-1)
        return Codes(joined, np.concatenate([part.steps for part in parts]))

    def _table(self, name: str) -> Codes:
        """The codes of a table of embeddings [V, K], with a step for each feature."""
        if name not in self._tables:
            codes, steps = self._table_codes(name)
            self._tables[name] = Codes(self._editor.add_constant(codes, f"{name}.codes"), steps)
        return self._tables[name]

    def _table_codes(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
        table = self._editor.constant(name)
        assert table is not None
        steps = np.maximum(np.abs(table.astype(np.float64)).max(0), SMALLEST_LARGEST) / LARGEST_CODE
        return (np.rint(table / steps) + ZERO).astype(np.uint8), steps

    def _fixed(self, value: str) -> Codes | None:
        bound = self.bound(value)
        if bound is None or bound.max() > MAX_FIXED_BOUND:
            return None
        step = max(float(bound.max()), SMALLEST_LARGEST) / LARGEST_CODE
        return Codes(self.quantized(value, step), np.full(self._editor.size(value), step))

    def row_scale(self, value: str) -> str:
        """[..., 1] the size of a step that suits the largest of each row."""
        largest = self._editor.add("ReduceMax", [self._editor.add("Abs", [value]), self._editor.integers(-1)])
        floored = self._editor.add("Max", [largest, self.number(SMALLEST_LARGEST)])
        return self._editor.add("Div", [floored, self.number(LARGEST_CODE)])

    def _per_row(self, value: str) -> Codes:
        scale = self.row_scale(value)
        codes = self._editor.add(
            "QuantizeLinear", [self._editor.add("Div", [value, scale]), self.number(1.0), self.zero]
        )
        return Codes(codes, np.ones(self._editor.size(value)), scale)
