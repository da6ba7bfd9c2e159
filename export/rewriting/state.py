"""The state between int8 graphs: memory and keys as bytes, and rows as a tensor per layer.

Shapes: B sources, M queries of each, S source positions, A key size, C context size (runtime/stepper.py); R rows, L
layers, H decoder size.

Memory and keys are most of a request's state, and a step reads little else. As codes they take a fourth. Scores and
contexts become products of integers; attention weights are quantized in steps of a 255th of the largest in their row.
Scores that are not products (additive, concat) keep keys and arithmetic in fp32.

Both products have a row per query, as most sources have one: ONNX Runtime packs the larger factor of a product before
it multiplies, which for a single row takes longer than the product. So keys are stored with their positions last, and
contexts leave the zero point and the scale out of their product: then a single row is multiplied without packing.

The plain graphs keep each part of a cell's state as one tensor [R, L, H], which a step takes apart and puts together
again. A hidden state that only products read is stored as codes: they are a fourth as large, and the next step need not
quantize it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx_ir as ir

from attendant.export.graph import GraphEditor, constant, inputs_of, made_by, operand, shape_of, size_of
from attendant.export.rewriting.bounds import Bounds
from attendant.export.rewriting.products import (
    LARGEST_CODE,
    MAX_FIXED_BOUND,
    Activations,
    Codes,
    find_product,
    joins_features,
)
from attendant.runtime.bundle.graph_content import LARGEST_FACTOR
from attendant.runtime.bundle.manifest import StateTensor

WEIGHT_STEP: Final = 1 / 255

SCALE_SUFFIX: Final = "_scale"  # Ends the name of the state tensor [B, S] that holds a scale per position.
TRANSPOSED_SUFFIX: Final = "_transposed"
"""Ends the name of keys that are the memory itself: they are stored a second time, with their positions last."""


@dataclass(frozen=True, slots=True)
class StoredCodes:
    """A source tensor of the state as the encoder stores it: codes int8 from -64 to 64, with the zero at 0.

    Attributes:
        shape: [B, S, C] of a memory, [B, A, S] of keys.
        scale: the name of a tensor [B, S], a further factor of each position's steps, if there is one.
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
    """The products of a plain step graph's attention, and the codes of memory and keys that `store` stores for them."""

    def __init__(self, step: GraphEditor) -> None:
        # Weights [B, M, S] times memory [B, S, C]; None if there is no attention of this form.
        self._contexts = _product(step, 1, "Softmax")
        # Keys [B, S, A] times queries [B, A, M]; None if the score is no product of this form.
        scores = _product(step, 0, "Transpose")
        self._scores = scores if scores is not None and _is_transposed(scores) else None
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
        """Makes the encoder output codes of the memory and the keys."""
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
        inputs = {codes.name: step.add_input(codes.name, ir.DataType.INT8, codes.shape) for codes in self.stored}
        inputs |= {scale: step.add_input(scale, ir.DataType.FLOAT, ("B", "S")) for scale in self.scales}
        if self._scores is not None and self.keys is not None:
            _replace_scores(step, activations, self._scores, self.keys, inputs)
        if self._contexts is not None and self.memory is not None:
            _replace_contexts(step, activations, self._contexts, self.memory, inputs)


def _product(step: GraphEditor, place: int, operator: str) -> ir.Node | None:
    """Returns the only product of an input [B, S, ...] of the graph, at this place, with an output of `operator`.

    Steps of users' modules may have several, of several layers or heads, which stay in fp32.
    """
    nodes = [
        node
        for node in step.graph
        if node.op_type == "MatMul"
        and node.inputs[place] in step.graph.inputs
        and len(operand(node, place).shape or ()) == 3
        and made_by(node.inputs[1 - place], operator) is not None
    ]
    return nodes[0] if len(nodes) == 1 else None


def _is_transposed(scores: ir.Node) -> bool:
    """Returns True if queries are transposed, and all readers of the scores [B, S, M] transpose these."""
    nodes = [made_by(scores.inputs[1], "Transpose"), *scores.outputs[0].consumers()]
    return all(
        node is not None and node.op_type == "Transpose" and tuple(node.attributes.get_ints("perm", ())) == (0, 2, 1)
        for node in nodes
    )


def _store_scale(encoder: GraphEditor, name: str, codes: Codes) -> str | None:
    if codes.row_scale is None:
        return None
    scale = f"{name}{SCALE_SUFFIX}"
    values = encoder.add("Squeeze", [codes.row_scale, encoder.integers(-1)])
    encoder.add_output(scale, values, ir.DataType.FLOAT, ("B", "S"))
    return scale


def _replace_scores(
    step: GraphEditor, activations: Activations, node: ir.Node, keys: StoredCodes, inputs: Mapping[str, ir.Value]
) -> None:
    transposed = made_by(node.inputs[1], "Transpose")
    assert transposed is not None
    queries = activations.uniform(operand(transposed))
    scales = activations.number(float(queries.steps[0])), activations.number(keys.step)
    scores = step.multiply_integers(queries.value, inputs[keys.name], *scales, activations.zero)
    if keys.scale is not None:
        scores = step.add("Mul", [scores, step.add("Unsqueeze", [inputs[keys.scale], step.integers(1)])])
    if queries.row_scale is not None:
        scores = step.add("Mul", [scores, queries.row_scale])
    # [B, M, S]; the plain graph has [B, S, M] and transposes it.
    for reader in node.outputs[0].consumers():
        step.replace(reader.outputs[0], scores)


def _replace_contexts(
    step: GraphEditor, activations: Activations, node: ir.Node, memory: StoredCodes, inputs: Mapping[str, ir.Value]
) -> None:
    weights = operand(node)
    if memory.scale is not None:
        weights = step.add("Mul", [weights, step.add("Unsqueeze", [inputs[memory.scale], step.integers(1)])])
    largest = step.add("ReduceMax", [weights, step.integers(-1)])
    none = step.add_constant(np.uint8(0), "none")
    shares = step.add("Div", [weights, largest])
    codes = step.add("QuantizeLinear", [shares, activations.number(WEIGHT_STEP), none])
    sums = step.add("Cast", [step.add("MatMulInteger", [codes, inputs[memory.name]])], to=ir.DataType.FLOAT)
    scale = step.add("Mul", [largest, activations.number(WEIGHT_STEP * memory.step)])
    step.replace(node.outputs[0], step.add("Mul", [sums, scale]))


@dataclass(frozen=True, slots=True)
class RowTensor:
    """One tensor [R, H = size] of the new state.

    Attributes:
        origin, layer: the tensor of the plain state and its layer that this is; layer None if it is all of it.
        step: of its codes; None if it stays float32.
        before, after: the values [R, H] of the plain step that it replaces.
    """

    tensor: StateTensor
    origin: StateTensor
    layer: int | None
    size: int
    step: float | None
    before: ir.Value
    after: ir.Value

    @property
    def dtype(self) -> ir.DataType:
        return ir.DataType.FLOAT if self.step is None else ir.DataType.UINT8


def plan_rows(step: GraphEditor, bounds: Bounds, state: Sequence[StateTensor]) -> list[RowTensor]:
    """Decides how the rows' state is stored; state tensors that the result does not name stay as they are."""
    planned = []
    for origin in state:
        if origin.scope != "row" or origin.output is None:
            continue
        whole, following = step.input(origin.input), step.output(origin.output)
        shape = shape_of(whole)
        # A user's module may have numbers, positions and further axes.
        if len(shape) not in (2, 3) or not all(shape[1:]):
            continue
        if len(shape) == 3:
            before, after = _taken_apart(whole), _put_together(following)
            if set(before) == set(range(shape[1])) and len(after) == shape[1]:
                planned += [_row_tensor(bounds, origin, whole, n, before[n], after[n]) for n in range(shape[1])]
        elif (row := _row_tensor(bounds, origin, whole, None, whole, following)).step:
            planned.append(row)
    return planned


def store_rows(encoder: GraphEditor, activations: Activations, planned: Sequence[RowTensor]) -> None:
    """Makes the encoder output the first state as planned."""
    plain = {row.origin.input: encoder.output(row.origin.input) for row in planned}
    for row in planned:
        value = plain[row.origin.input]
        if row.layer is not None:
            value = encoder.add("Gather", [value, encoder.add_constant(np.int64(row.layer), "layer")], axis=1)
        if row.step is not None:
            value = activations.quantized(value, row.step)
        encoder.add_output(row.tensor.input, value, row.dtype, ("B", row.size))
    for value in plain.values():
        encoder.graph.outputs.remove(value)


def read_rows(step: GraphEditor, activations: Activations, planned: Sequence[RowTensor]) -> None:
    """Makes a step take its state as planned; called before products are replaced, so that they find the codes."""
    for row in planned:
        value = step.add_input(row.tensor.input, row.dtype, ("R", row.size))
        step.replace(row.before, value)
        if row.step is not None:
            activations.set(value, Codes(value, np.full(row.size, row.step)))
    for name in {row.origin.input for row in planned}:
        step.graph.inputs.remove(step.input(name))


def write_rows(step: GraphEditor, activations: Activations, planned: Sequence[RowTensor]) -> None:
    """Makes a step output its state as planned; called after products were replaced, so that codes are made once."""
    plain = {row.origin.output: step.output(row.origin.output) for row in planned if row.origin.output is not None}
    for row in planned:
        value = row.after
        if row.step is not None:
            codes = activations.of(value)
            same = (codes.steps == row.step).all()
            value = codes.value if same else activations.quantized(value, row.step)
        assert row.tensor.output is not None
        step.add_output(row.tensor.output, value, row.dtype, ("R", row.size))
    for value in plain.values():
        step.graph.outputs.remove(value)


def _row_tensor(
    bounds: Bounds, origin: StateTensor, whole: ir.Value, layer: int | None, before: ir.Value, after: ir.Value
) -> RowTensor:
    bound = bounds.largest(whole)
    step = None
    if bound is not None and bound <= MAX_FIXED_BOUND and _is_multiplied_only(before):
        step = bound / LARGEST_CODE
    name = f"{origin.input}_codes" if layer is None else f"{origin.input}_{layer}"
    return RowTensor(
        tensor=StateTensor(input=name, output=f"{name}_out", scope="row"),
        origin=origin,
        layer=layer,
        size=shape_of(whole)[-1],
        step=step,
        before=before,
        after=after,
    )


def _is_multiplied_only(value: ir.Value) -> bool:
    """Returns True if only products with matrices read the value, alone or joined to others."""

    def multiplies(node: ir.Node) -> bool:
        if joins_features(node):
            return _is_multiplied_only(node.outputs[0])
        product = find_product(node)
        return product is not None and product.inputs is value

    return not value.is_graph_output() and all(multiplies(node) for node in value.consumers())


def _taken_apart(value: ir.Value) -> dict[int, ir.Value]:
    """Returns layer -> the value [R, H] that a step slices from [R, L, H]; empty if it has other uses, too."""
    layers: dict[int, ir.Value] = {}
    for node in value.consumers():
        layer, part = 0, value
        if node.op_type == "Slice":
            start, axes = constant(node.inputs[1]), constant(node.inputs[3])
            if start is None or axes is None or axes.tolist() != [1]:
                return {}
            layer, part = int(start[0]), node.outputs[0]
        squeezed = part.consumers()
        if len(squeezed) != 1 or squeezed[0].op_type != "Squeeze":
            return {}
        layers[layer] = squeezed[0].outputs[0]
    return layers


def _put_together(value: ir.Value) -> list[ir.Value]:
    """Returns the values [R, H] from which a step makes [R, L, H]."""
    stacked = made_by(value, "Concat")
    parts = [value] if stacked is None else inputs_of(stacked)
    layers = [made_by(part, "Unsqueeze") for part in parts]
    return [operand(node) for node in layers if node is not None]
