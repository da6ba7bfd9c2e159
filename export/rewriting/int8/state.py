"""The state of rows in int8: a tensor per layer, and codes where nothing but products reads it.

Shapes: R rows, L layers, H decoder size.

The plain graphs keep each part of a cell's state as one tensor [R, L, H], which a step takes apart and puts together
again. A hidden state that only products read is stored as codes: they are a fourth as large, and the next step need not
quantize it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from attendant.export.rewriting.bounds import Bounds
from attendant.export.rewriting.graph import GraphEditor, constant, given, made_by, operand, shape_of
from attendant.export.rewriting.int8.activations import (
    LARGEST_CODE,
    MAX_FIXED_BOUND,
    Activations,
    Codes,
    joins_features,
)
from attendant.export.rewriting.int8.products import find_product
from attendant.runtime.bundle.manifest import StateTensor


@dataclass(frozen=True, slots=True)
class RowTensor:
    """One tensor [R, H] of the new state.

    Attributes:
        tensor: its names.
        origin: the tensor of the plain state that it is of.
        layer: which layer of it; None: all of it.
        size: H.
        step: of its codes; None: it stays float32.
        before, after: the values [R, H] of the plain step that it stands for.
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
        if len(shape) == 3:
            before, after = _taken_apart(whole), _put_together(following)
            if set(before) == set(range(shape[1])) and len(after) == shape[1]:
                planned += [_row_tensor(bounds, origin, whole, n, before[n], after[n]) for n in range(shape[1])]
        elif shape[1] and (row := _row_tensor(bounds, origin, whole, None, whole, following)).step:
            planned.append(row)
    return planned


def store_rows(encoder: GraphEditor, activations: Activations, planned: Sequence[RowTensor]) -> None:
    """Makes the encoder give the first state as planned."""
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
    """Makes a step give its state as planned; called after products were replaced, so that codes are made once."""
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
    """Whether nothing but products with matrices reads the value, alone or joined to others."""

    def multiplies(node: ir.Node) -> bool:
        if joins_features(node):
            return _is_multiplied_only(node.outputs[0])
        product = find_product(node)
        return product is not None and product.inputs is value

    return not value.is_graph_output() and all(multiplies(node) for node in value.consumers())


def _taken_apart(value: ir.Value) -> dict[int, ir.Value]:
    """Layer -> the value [R, H] that a step takes out of [R, L, H]; empty where the step reads that otherwise too."""
    layers: dict[int, ir.Value] = {}
    for node in value.consumers():
        layer, one = 0, value
        if node.op_type == "Slice":
            start, axes = constant(node.inputs[1]), constant(node.inputs[3])
            if start is None or axes is None or axes.tolist() != [1]:
                return {}
            layer, one = int(start[0]), node.outputs[0]
        squeezed = one.consumers()
        if len(squeezed) != 1 or squeezed[0].op_type != "Squeeze":
            return {}
        layers[layer] = squeezed[0].outputs[0]
    return layers


def _put_together(value: ir.Value) -> list[ir.Value]:
    """The values [R, H] that a step makes [R, L, H] of."""
    stacked = made_by(value, "Concat")
    parts = [value] if stacked is None else given(stacked)
    layers = [made_by(part, "Unsqueeze") for part in parts]
    return [operand(node) for node in layers if node is not None]
