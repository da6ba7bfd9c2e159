"""The K most probable of a large vocabulary, found in two stages.

Shapes: R rows, V target vocabulary, W the width of a block, K candidates.

TopK keeps a heap while it walks over every symbol; the maximum of each block is found three times as fast. The K most
probable symbols are in the K blocks of the largest maxima, since a symbol of any other block is preceded by one of each
of these. The result is TopK's own, ties by the lower id included.
"""

from typing import Final

import numpy as np
import onnx_ir as ir

from attendant.export.rewriting.graph import GraphEditor, constant, operand, size_of
from attendant.training.model.readout import IMPOSSIBLE

BLOCK: Final = 64
"""W."""

MIN_VOCABULARY: Final = 32 * BLOCK
"""Below, one TopK is as fast."""


def replace_top(editor: GraphEditor) -> None:
    """Finds the candidates of a large vocabulary by blocks.

    The output layer must still be a product of floats: its columns are filled up to whole blocks.
    """
    (top,) = [node for node in editor.graph if node.op_type == "TopK"]
    log_probs, count = operand(top, 0), operand(top, 1)
    size = size_of(log_probs)
    if size < MIN_VOCABULARY:
        return
    if size % BLOCK:
        _fill_up(editor, log_probs, -size % BLOCK)
    integers = editor.integers
    blocks = editor.add("Reshape", [log_probs, integers(0, -1, BLOCK)])
    maxima = editor.add("ReduceMax", [blocks, integers(-1)], keepdims=0)
    num_blocks = -(-size // BLOCK)
    enough = editor.add("Min", [count, integers(num_blocks)])
    _, chosen = editor.add_many("TopK", [maxima, enough], 2)
    # In the vocabulary's order, so that the lower id stands first among equals.
    chosen, _ = editor.add_many("TopK", [chosen, enough], 2, largest=0)
    inside = editor.add("GatherND", [blocks, editor.add("Unsqueeze", [chosen, integers(-1)])], batch_dims=1)
    values, places = editor.add_many("TopK", [editor.add("Reshape", [inside, integers(0, -1)]), count], 2)
    width = editor.add_constant(np.int64(BLOCK), "width")
    numbers = editor.add("Div", [places, width])
    skipped = editor.add("Sub", [editor.add("GatherElements", [chosen, numbers], axis=1), numbers])
    ids = editor.add("Add", [places, editor.add("Mul", [skipped, width])])
    editor.replace(top.outputs[0], values)
    editor.replace(top.outputs[1], ids)


def _fill_up(editor: GraphEditor, log_probs: ir.Value, count: int) -> None:
    """Widens the output layer that `log_probs` come from by `count` symbols that are never chosen."""
    value = log_probs
    while (node := value.producer()) is not None and node.op_type != "Gemm":
        value = operand(node)
    assert node is not None and len(node.inputs) == 3, "the output layer is a product with a bias"
    matrix, bias = constant(node.inputs[1]), constant(node.inputs[2])
    assert matrix is not None and bias is not None
    wider = np.pad(matrix, ((0, count), (0, 0))), np.pad(bias, (0, count), constant_values=IMPOSSIBLE)
    for place, values in enumerate(wider, 1):
        node.replace_input_with(place, editor.add_constant(values, operand(node, place).name or ""))
