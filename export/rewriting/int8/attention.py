"""Attention over a memory of bytes.

Shapes: B sources, M queries of each, S source positions, A key size, C context size (runtime/stepper.py).

Memory and keys are most of a request's state, and most of what a step reads. As codes they take a fourth. Scores and
contexts become products of integers; attention weights are quantized in steps of a 255th of the largest in their row.
Scores that are no products (additive, concat) keep keys and arithmetic in fp32.

Both products have a row per query, as most sources have one: ONNX Runtime packs the larger factor of a product before
it multiplies, which for a single row takes longer than the product. So keys are stored with their positions last, and
contexts leave the zero point and the scale out of their product: then a single row is multiplied without packing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx_ir as ir

from attendant.export.rewriting.graph import GraphEditor, made_by, operand, size_of
from attendant.export.rewriting.int8.activations import Activations, Codes
from attendant.runtime.bundle.graph_content import LARGEST_FACTOR

WEIGHT_STEP: Final = 1 / 255

SCALE_SUFFIX: Final = "_scale"
"""Ends the name of the state tensor [B, S] that holds a scale per position."""

TRANSPOSED_SUFFIX: Final = "_transposed"
"""Ends the name of keys that are the memory itself: they are stored beside it, with their positions last."""


@dataclass(frozen=True, slots=True)
class StoredCodes:
    """A source tensor of the state as the encoder stores it: codes int8 from -64 to 64, with the zero at 0.

    Attributes:
        name: of the tensor.
        shape: [B, S, C] of a memory, [B, A, S] of keys.
        step: of all codes.
        scale: the name of a tensor [B, S] by which each position's steps are multiplied on top; None: there is none.
    """

    name: str
    shape: tuple[str | int, ...]
    step: float
    scale: str | None

    @property
    def description(self) -> str:
        scale = "in fixed steps" if self.scale is None else "with a scale per position"
        return f"stored as int8 in codes to {LARGEST_FACTOR} {scale}"


class Attention:
    """The products of a plain step graph's attention, and the source tensors that are stored for them.

    Attributes:
        memory, keys: what the encoder stores in their place, once it does; None: it stores what it did before.
    """

    def __init__(self, step: GraphEditor) -> None:
        # Weights [B, M, S] times memory [B, S, C]; None: there is no attention.
        self._contexts = _product(step, 1, "Softmax")
        # Keys [B, S, A] times queries [B, A, M]; None: the score is no product.
        self._scores = _product(step, 0, "Transpose")
        self._step = step
        self.memory: StoredCodes | None = None
        self.keys: StoredCodes | None = None

    @property
    def stored(self) -> list[StoredCodes]:
        return [codes for codes in (self.memory, self.keys) if codes is not None]

    @property
    def scales(self) -> list[str]:
        """The names of the scales; memory and keys that are the same values share one."""
        return list(dict.fromkeys(codes.scale for codes in self.stored if codes.scale is not None))

    def store(self, encoder: GraphEditor, activations: Activations) -> None:
        """Makes the encoder's outputs codes of the memory and the keys."""
        memory = None if self._contexts is None else operand(self._contexts, 1).name
        keys = None if self._scores is None else operand(self._scores, 0).name
        names = dict.fromkeys(name for name in (memory, keys) if name is not None)
        sizes = {name: size_of(encoder.output(name)) for name in names}
        codes = {name: activations.factors(encoder.output(name)) for name in names}
        scales = {name: _store_scale(encoder, name, codes[name]) for name in names}

        def stored(origin: str, name: str, value: ir.Value, shape: tuple[str | int, ...]) -> StoredCodes:
            encoder.add_output(name, value, ir.DataType.INT8, shape)
            return StoredCodes(name, shape, float(codes[origin].steps[0]), scales[origin])

        if keys is not None:
            transposed = encoder.add("Transpose", [codes[keys].value], perm=[0, 2, 1])
            name = f"{keys}{TRANSPOSED_SUFFIX}" if keys == memory else keys
            self.keys = stored(keys, name, transposed, ("B", sizes[keys], "S"))
        if memory is not None:
            self.memory = stored(memory, memory, codes[memory].value, ("B", "S", sizes[memory]))

    def replace(self, activations: Activations) -> None:
        """Replaces a step's attention by products of integers, and its memory and keys by inputs of codes."""
        step = self._step
        given = {codes.name: step.add_input(codes.name, ir.DataType.INT8, codes.shape) for codes in self.stored}
        given |= {scale: step.add_input(scale, ir.DataType.FLOAT, ("B", "S")) for scale in self.scales}
        if self._scores is not None and self.keys is not None:
            _replace_scores(step, activations, self._scores, self.keys, given)
        if self._contexts is not None and self.memory is not None:
            _replace_contexts(step, activations, self._contexts, self.memory, given)


def _product(step: GraphEditor, place: int, operator: str) -> ir.Node | None:
    """The one product of an input of the graph, at this place, with what `operator` makes."""
    found = [
        node
        for node in step.graph
        if node.op_type == "MatMul"
        and node.inputs[place] in step.graph.inputs
        and made_by(node.inputs[1 - place], operator) is not None
    ]
    assert len(found) <= 1, "a step attends once"
    return found[0] if found else None


def _store_scale(encoder: GraphEditor, name: str, codes: Codes) -> str | None:
    if codes.row_scale is None:
        return None
    scale = f"{name}{SCALE_SUFFIX}"
    values = encoder.add("Squeeze", [codes.row_scale, encoder.integers(-1)])
    encoder.add_output(scale, values, ir.DataType.FLOAT, ("B", "S"))
    return scale


def _replace_scores(
    step: GraphEditor, activations: Activations, node: ir.Node, keys: StoredCodes, given: Mapping[str, ir.Value]
) -> None:
    transposed = made_by(node.inputs[1], "Transpose")
    assert transposed is not None and transposed.attributes.get_ints("perm", ()) == (0, 2, 1)
    queries = activations.uniform(operand(transposed))
    scales = activations.number(float(queries.steps[0])), activations.number(keys.step)
    scores = step.multiply_integers(queries.value, given[keys.name], *scales, activations.zero)
    if keys.scale is not None:
        scores = step.add("Mul", [scores, step.add("Unsqueeze", [given[keys.scale], step.integers(1)])])
    if queries.row_scale is not None:
        scores = step.add("Mul", [scores, queries.row_scale])
    # [B, M, S], where the plain graph has [B, S, M] and transposes it.
    for reader in node.outputs[0].consumers():
        assert reader.op_type == "Transpose" and reader.attributes.get_ints("perm", ()) == (0, 2, 1)
        step.replace(reader.outputs[0], scores)


def _replace_contexts(
    step: GraphEditor, activations: Activations, node: ir.Node, memory: StoredCodes, given: Mapping[str, ir.Value]
) -> None:
    weights = operand(node)
    if memory.scale is not None:
        weights = step.add("Mul", [weights, step.add("Unsqueeze", [given[memory.scale], step.integers(1)])])
    largest = step.add("ReduceMax", [weights, step.integers(-1)])
    none = step.add_constant(np.uint8(0), "none")
    shares = step.add("Div", [weights, largest])
    codes = step.add("QuantizeLinear", [shares, activations.number(WEIGHT_STEP), none])
    sums = step.add("Cast", [step.add("MatMulInteger", [codes, given[memory.name]])], to=ir.DataType.FLOAT)
    scale = step.add("Mul", [largest, activations.number(WEIGHT_STEP * memory.step)])
    step.replace(node.outputs[0], step.add("Mul", [sums, scale]))
