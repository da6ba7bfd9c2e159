"""LSTM layers in integers, as ONNX Runtime's own DynamicQuantizeLSTM: all positions of a layer in one node.

Shapes: B sources, S positions, I inputs, H hidden size, D = 1 or 2 directions, P calibration units.

The node takes the scale of its inputs, and at each position that of the hidden states, from the largest and the
smallest value of the whole batch: a source would depend on its neighbours. So every row carries calibration constants,
values that are larger than any other can become: two features of the inputs, and P hidden units whose gates stand open
on a cell that never changes. Their weights are zero. Largest and smallest are then these constants, whatever the
batch-mates are, and the scales fixed.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx_ir as ir

from attendant.export.rewriting.graph import CONTRIBUTED, GraphEditor
from attendant.export.rewriting.int8.products import Matrix, quantized

CALIBRATION_CELLS: Final = (8.475540, 20.0, -8.475540, -20.0)
"""The cells of the calibration units. ONNX Runtime's |tanh| is largest at the first, where it passes 1 by two units in
the last place, on processors with FMA: a test walks over all floats. Where it is not, saturated ones are."""

NUM_CALIBRATION: Final = len(CALIBRATION_CELLS)
"""P: of both signs, and the inner dimension of the recurrent product stays a multiple of 4."""

CALIBRATION_OUTPUT_GATE: Final = 17.482065
"""Where ONNX Runtime's sigmoid is largest, by one unit in the last place."""

SATURATED: Final = 20.0
"""From here on sigmoid is 1, and 0 at its negative."""

NUM_GATES: Final = 4


def add_lstm(
    editor: GraphEditor,
    inputs: ir.Value,
    matrices: Sequence[tuple[Matrix, Matrix, Matrix]],
    lengths: ir.Value,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Adds a layer that starts from zero.

    Args:
        inputs: [S, B, I] float32, with calibration constants among its features.
        matrices: of each direction W [I, 4 H], U [H, 4 H] and b [4 H]; gates are input, output, forget, cell.
        lengths: [B] int32.

    Returns:
        The hidden states [S, D, B, H + P] float32, zero beyond the lengths, the last ones and the last cells
        [D, B, H + P].
    """
    size = matrices[0][1].shape[0] + NUM_CALIBRATION
    weights = [quantized(_widened(of_inputs)) for of_inputs, _, _ in matrices]
    recurrent = [quantized(_widened(np.pad(of_hidden, ((0, NUM_CALIBRATION), (0, 0))))) for _, of_hidden, _ in matrices]
    biases = np.stack([_with_calibration(bias) for _, _, bias in matrices])
    zero = editor.add_constant(np.zeros((len(matrices), NUM_GATES * size), np.int8), "nothing")

    def constant(parts: Sequence[Matrix], name: str) -> ir.Value:
        return editor.add_constant(np.stack(parts), name)

    states, final, cells = editor.add_many(
        "DynamicQuantizeLSTM",
        [
            inputs,
            constant([codes for codes, _ in weights], "weights.codes"),
            constant([codes for codes, _ in recurrent], "recurrent.codes"),
            editor.add_constant(np.concatenate([biases, np.zeros_like(biases)], 1).astype(np.float32), "biases"),
            lengths,
            *_start(editor, len(matrices), size, lengths),
            None,
            constant([scales for _, scales in weights], "weights.scales"),
            zero,
            constant([scales for _, scales in recurrent], "recurrent.scales"),
            zero,
        ],
        3,
        domain=CONTRIBUTED,
        hidden_size=size,
        direction="bidirectional" if len(matrices) == 2 else "forward",
    )
    return states, final, cells


def _start(editor: GraphEditor, num_directions: int, size: int, lengths: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The first hidden states and cells [D, B, H + P] float32: zero but for the calibration units."""
    cells = editor.add_constant(np.array(CALIBRATION_CELLS, np.float32), "calibration")
    gates = editor.add_constant(np.full(NUM_CALIBRATION, CALIBRATION_OUTPUT_GATE, np.float32), "calibration")
    # Worked out by the kernels that work out the states; ONNX Runtime does so once, when it loads the graph.
    hidden = editor.add("Mul", [editor.add("Sigmoid", [gates]), editor.add("Tanh", [cells])])
    nothing = editor.add_constant(np.zeros(size - NUM_CALIBRATION, np.float32), "nothing")
    num_sources = editor.add("Shape", [lengths])
    shape = editor.add("Concat", [editor.integers(num_directions), num_sources, editor.integers(1)], axis=0)
    first, second = (
        editor.add("Expand", [editor.add("Concat", [nothing, units], axis=0), shape]) for units in (hidden, cells)
    )
    return first, second


def _widened(matrix: Matrix) -> Matrix:
    """[K, 4 (H + P)] from [K, 4 H]: the calibration units' columns are zero."""
    gates = matrix.reshape(len(matrix), NUM_GATES, -1)
    return np.pad(gates, ((0, 0), (0, 0), (0, NUM_CALIBRATION))).reshape(len(matrix), -1)


def _with_calibration(bias: Matrix) -> Matrix:
    """[4 (H + P)] from [4 H]: the calibration units' cells stay as they are and are shown."""
    gates = np.array([-SATURATED, CALIBRATION_OUTPUT_GATE, SATURATED, 0.0])
    return np.concatenate([bias.reshape(NUM_GATES, -1), np.repeat(gates[:, None], NUM_CALIBRATION, 1)], 1).reshape(-1)
