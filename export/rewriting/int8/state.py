"""The rows' state, as int8 keeps it: a tensor per layer, and codes where nothing but products reads it.

Shapes: R rows, L layers, H decoder size.

The plain graphs keep each part of a cell's state as one tensor [R, L, H], which a step takes apart and puts together
again. And a hidden state that only products read is quantized at the end of a step anyway: its codes are a fourth as
large, and the next step finds them ready.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from attendant.export.rewriting.bounds import Bounds
from attendant.export.rewriting.graph import GraphEditor, attribute
from attendant.export.rewriting.int8.activations import LARGEST_CODE, MAX_FIXED_BOUND, Activations, Codes
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
        before, after: the values of the plain step that it stands for.
    """

    tensor: StateTensor
    origin: StateTensor
    layer: int | None
    size: int
    step: float | None
    before: str
    after: str

    @property
    def element(self) -> int:
        return int(TensorProto.FLOAT if self.step is None else TensorProto.UINT8)


def plan_rows(editor: GraphEditor, bounds: Bounds, state: Sequence[StateTensor]) -> list[RowTensor]:
    """How the state of a plain step is kept from now on; what is not in the list stays as it is."""
    planned = []
    for origin in state:
        if origin.scope != "row" or origin.output is None:
            continue
        shape = editor.shape(origin.input)
        if len(shape) == 3:
            before, after = _taken_apart(editor, origin.input), _put_together(editor, origin.output)
            if set(before) == set(range(shape[1])) and len(after) == shape[1]:
                planned += [
                    _row_tensor(editor, bounds, origin, layer, before[layer], after[layer]) for layer in range(shape[1])
                ]
        elif shape[1] and (whole := _row_tensor(editor, bounds, origin, None, origin.input, origin.output)).step:
            planned.append(whole)
    return planned


def store_rows(editor: GraphEditor, activations: Activations, planned: Sequence[RowTensor]) -> None:
    """Lets the encoder give the first state in that form."""
    for row in planned:
        value = row.origin.input
        if row.layer is not None:
            value = editor.add("Gather", [value, editor.add_constant(np.int64(row.layer), "layer")], axis=1)
        if row.step is not None:
            value = activations.quantized(value, row.step)
        editor.add_output(row.tensor.input, value, row.element, ("B", row.size))
    for name in {row.origin.input for row in planned}:
        editor.drop_output(name)


def read_rows(editor: GraphEditor, activations: Activations, planned: Sequence[RowTensor]) -> None:
    """Lets a step take its state in that form; before the products are replaced."""
    for row in planned:
        editor.add_input(row.tensor.input, row.element, ("R", row.size))
        name = editor.replace(row.before, row.tensor.input)
        if row.step is not None:
            activations.set(name, Codes(row.tensor.input, np.full(row.size, row.step)))
    for name in {row.origin.input for row in planned}:
        editor.drop_input(name)


def write_rows(editor: GraphEditor, activations: Activations, planned: Sequence[RowTensor]) -> None:
    """Lets a step give its state in that form; after the products were replaced, so that codes are made once."""
    for row in planned:
        value = row.after
        if row.step is not None:
            codes = activations.of(value)
            value = codes.name if (codes.steps == row.step).all() else activations.quantized(value, row.step)
        assert row.tensor.output is not None
        editor.add_output(row.tensor.output, value, row.element, ("R", row.size))
    for name in {row.origin.output for row in planned}:
        assert name is not None
        editor.drop_output(name)


def _row_tensor(
    editor: GraphEditor, bounds: Bounds, origin: StateTensor, layer: int | None, before: str, after: str
) -> RowTensor:
    bound = bounds.of(origin.input)
    step = None
    if bound is not None and bound.max() <= MAX_FIXED_BOUND and _is_multiplied_only(editor, before):
        step = float(bound.max()) / LARGEST_CODE
    name = f"{origin.input}_codes" if layer is None else f"{origin.input}_{layer}"
    return RowTensor(
        tensor=StateTensor(input=name, output=f"{name}_out", scope="row"),
        origin=origin,
        layer=layer,
        size=editor.shape(origin.input)[-1],
        step=step,
        before=before,
        after=after,
    )


def _is_multiplied_only(editor: GraphEditor, value: str) -> bool:
    """Whether nothing but products with matrices reads the value, alone or joined to others."""

    def multiplies(node: onnx.NodeProto) -> bool:
        if node.op_type == "Concat" and attribute(node, "axis") in (-1, len(editor.shape(node.output[0])) - 1):
            return _is_multiplied_only(editor, node.output[0])
        product = find_product(editor, node)
        return product is not None and product.inputs == value

    return not editor.is_output(value) and all(multiplies(node) for node in editor.readers(value))


def _taken_apart(editor: GraphEditor, value: str) -> dict[int, str]:
    """Layer -> the value [R, H] that a step takes out of [R, L, H]; empty where it does something else, too."""
    layers: dict[int, str] = {}
    for node in editor.readers(value):
        layer, one = 0, value
        if node.op_type == "Slice":
            start, axes = editor.constant(node.input[1]), editor.constant(node.input[3])
            if start is None or axes is None or axes.tolist() != [1]:
                return {}
            layer, one = int(start[0]), node.output[0]
        squeezed = editor.readers(one)
        if len(squeezed) != 1 or squeezed[0].op_type != "Squeeze":
            return {}
        layers[layer] = squeezed[0].output[0]
    return layers


def _put_together(editor: GraphEditor, value: str) -> list[str]:
    """The values [R, H] that a step makes [R, L, H] of."""
    stacked = editor.made_by(value, "Concat")
    parts = [value] if stacked is None else list(stacked.input)
    layers = [editor.made_by(part, "Unsqueeze") for part in parts]
    return [node.input[0] for node in layers if node is not None]
