"""The encoder's recurrent layers in integers.

Shapes: B sources, S positions, I inputs, H hidden size of one direction, D = 1 or 2 directions, G = 4 (LSTM), 3 (GRU)
or 1 (tanh) gates, P calibration units.

An LSTM becomes ONNX Runtime's DynamicQuantizeLSTM: all positions of a layer in one node. ONNX Runtime has no such node
for the other cells, which become a Scan over the positions. Both directions share the Scan, the backward one over
sources that were reversed within their lengths: padding then comes last in both and touches no valid position. Gates
are in ONNX's order: update, reset, hidden (GRU).

DynamicQuantizeLSTM takes the scale of its inputs, and at each position that of the hidden states, from the largest and
the smallest value of the whole batch: a source would depend on its batch. So every row carries calibration constants,
which are larger than any other value can become: two features of the inputs, and P hidden units whose gates are open
on a cell that never changes. Their weights are zero. Largest and smallest are then these constants in any batch, and
the scales fixed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import onnx_ir as ir

from attendant.export.graph import CONTRIBUTED, GraphBuilder, GraphEditor, constant, operand
from attendant.export.rewriting.products import (
    LARGEST_CODE,
    LARGEST_WEIGHT,
    ZERO,
    Activations,
    Codes,
    Matrix,
    quantized,
)

HIDDEN_STEP: Final = 1 / LARGEST_CODE  # Step of the codes of hidden states, which are within -1 and 1.


class ScanBody(GraphBuilder):
    """The steps of all directions at one position.

    Each direction's inputs are concatenated with its hidden state, both as codes, and multiplied with [W; U] at once.
    Each direction carries its hidden state as codes, a GRU also as values; the outputs are the codes.
    """

    def __init__(self, operator: str, hidden_size: int) -> None:
        super().__init__(ir.Graph([], [], nodes=[], name="position"), "position")
        self.hidden_size = hidden_size
        self._cell = CELLS[operator]
        self._states: dict[ir.Value, ir.Value] = {}
        self._scanned: dict[ir.Value, ir.Value] = {}
        self._step = self.add_constant(np.float32(HIDDEN_STEP), "step")
        self._one = self.add_constant(np.float32(1.0), "one")
        self._zero = self.add_constant(np.uint8(ZERO), "zero")

    @property
    def coded_states(self) -> list[bool]:
        """True for each state [B, H] that is codes, which begin with the code of 0, as values begin with 0."""
        return [state.dtype == ir.DataType.UINT8 for state in self._states]

    def add_direction(self, matrix: Matrix, bias: Matrix) -> None:
        """Adds a direction with a matrix [I + H, N] float64 of the joined codes, steps folded in, and a bias [N]."""
        before, inputs = (ir.val(self.unique(name), ir.DataType.UINT8) for name in ("codes", "inputs"))
        # Its place among the states is before those that the cell adds.
        self._states[before] = before
        weights, scales = quantized(matrix)
        joined = self.add("Concat", [inputs, before], axis=-1)
        factors = joined, self.add_constant(weights, "weights"), self._one, self.add_constant(scales, "scales")
        sums = self.multiply_integers(*factors, self._zero, self.add_constant(bias.astype(np.float32), "bias"))
        hidden = self._cell(self, sums)
        after = self.add("QuantizeLinear", [hidden, self._step, self._zero])
        self.set_state(before, after)
        # One name can't be two of the body's outputs.
        self._scanned[inputs] = self.add("Identity", [after])

    def set_state(self, before: ir.Value, after: ir.Value) -> None:
        """Sets the value of a state after the position."""
        after.dtype = before.dtype or ir.DataType.UNDEFINED
        self._states[before] = after

    def to_graph(self) -> ir.Graph:
        """Returns the body: from the states before and inputs to the states after and codes."""
        for codes in self._scanned.values():
            codes.dtype = ir.DataType.UINT8
        self.graph.inputs.extend([*self._states, *self._scanned])
        self.graph.outputs.extend([*self._states.values(), *self._scanned.values()])
        return self.graph


def _gru(body: ScanBody, sums: ir.Value) -> ir.Value:
    """Adds z, r = sigmoid of the sums; n = tanh(x + r u), x and u the last of the sums [B, 4 H]; h' = n + z (h - n)."""
    hidden = ir.val(body.unique("hidden"), ir.DataType.FLOAT)
    size = body.hidden_size
    gates, of_inputs, of_hidden = body.add_many("Split", [sums, body.integers(2 * size, size, size)], 3, axis=-1)
    update, reset = body.add_many("Split", [body.add("Sigmoid", [gates])], 2, axis=-1, num_outputs=2)
    candidate = body.add("Tanh", [body.add("Add", [of_inputs, body.add("Mul", [reset, of_hidden])])])
    difference = body.add("Sub", [hidden, candidate])
    after = body.add("Add", [candidate, body.add("Mul", [update, difference])])
    body.set_state(hidden, after)
    return after


CELLS: Final[Mapping[str, Callable[[ScanBody, ir.Value], ir.Value]]] = {
    "GRU": _gru,
    "RNN": lambda body, sums: body.add("Tanh", [sums]),
}
"""Functions that add a cell to a body: from the sums of W x, U h and b [B, N] to the hidden state [B, H]."""


def stacked(operator: str, weights: Matrix, recurrent: Matrix, biases: Matrix) -> tuple[Matrix, Matrix]:
    """Returns one matrix [I + H, N] float64 and one bias [N] float32 for a direction's two products.

    A GRU's reset gate multiplies only the recurrent half of its candidate: the halves stay apart, N = 4 H.

    Args:
        weights, recurrent: [I, G H] and [H, G H] float64, with the steps of their activations folded in.
        biases: [2 G H] float32 of both, as the ONNX node has them.
    """
    of_inputs, of_hidden = np.split(biases, 2)
    if operator != "GRU":
        return np.concatenate([weights, recurrent]), of_inputs + of_hidden
    (input_gates, input_candidate), (hidden_gates, hidden_candidate) = (
        np.split(matrix, [matrix.shape[-1] * 2 // 3], axis=-1) for matrix in (weights, recurrent)
    )
    nothing = np.zeros_like(input_candidate), np.zeros_like(hidden_candidate)
    matrix = np.block([[input_gates, input_candidate, nothing[0]], [hidden_gates, nothing[1], hidden_candidate]])
    split = of_inputs.shape[0] * 2 // 3
    gates = of_inputs[:split] + of_hidden[:split]
    return matrix, np.concatenate([gates, of_inputs[split:], of_hidden[split:]])


CALIBRATION_CELLS: Final = (8.475540, 20.0, -8.475540, -20.0)
"""The cells of the calibration units. On processors with FMA, ONNX Runtime's |tanh| is largest at the first, where it
passes 1 by two units in the last place (a test walks over all floats); on others at the saturated ones."""

NUM_CALIBRATION: Final = len(CALIBRATION_CELLS)
"""P: of both signs, and the inner dimension of the recurrent product stays a multiple of 4."""

CALIBRATION_OUTPUT_GATE: Final = 17.482065
"""The argument at which ONNX Runtime's sigmoid is largest, by one unit in the last place."""

SATURATED: Final = 20.0  # From here on sigmoid is 1, and 0 at its negative.
NUM_GATES: Final = 4


def add_lstm(
    editor: GraphEditor, inputs: ir.Value, matrices: Sequence[tuple[Matrix, Matrix, Matrix]], lengths: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Adds a layer that starts from zero, over inputs [S, B, I] with calibration constants, of lengths [B] int32.

    Args:
        matrices: of each direction W [I, 4 H], U [H, 4 H] and b [4 H]; gates are input, output, forget, cell.

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
    """Returns the first hidden states and cells [D, B, H + P] float32: zero except for the calibration units."""
    cells = editor.add_constant(np.array(CALIBRATION_CELLS, np.float32), "calibration")
    gates = editor.add_constant(np.full(NUM_CALIBRATION, CALIBRATION_OUTPUT_GATE, np.float32), "calibration")
    # Computed by the kernels that compute the states; ONNX Runtime does so once, when it loads the graph.
    hidden = editor.add("Mul", [editor.add("Sigmoid", [gates]), editor.add("Tanh", [cells])])
    nothing = editor.add_constant(np.zeros(size - NUM_CALIBRATION, np.float32), "nothing")
    num_sources = editor.add("Shape", [lengths])
    shape = editor.add("Concat", [editor.integers(num_directions), num_sources, editor.integers(1)], axis=0)
    first, second = (
        editor.add("Expand", [editor.add("Concat", [nothing, units], axis=0), shape]) for units in (hidden, cells)
    )
    return first, second


def _widened(matrix: Matrix) -> Matrix:
    """Returns [K, 4 (H + P)] from [K, 4 H]: the calibration units' columns are zero."""
    gates = matrix.reshape(len(matrix), NUM_GATES, -1)
    return np.pad(gates, ((0, 0), (0, 0), (0, NUM_CALIBRATION))).reshape(len(matrix), -1)


def _with_calibration(bias: Matrix) -> Matrix:
    """Returns [4 (H + P)] from [4 H]: the calibration units keep their cells and show them."""
    gates = np.array([-SATURATED, CALIBRATION_OUTPUT_GATE, SATURATED, 0.0])
    return np.concatenate([bias.reshape(NUM_GATES, -1), np.repeat(gates[:, None], NUM_CALIBRATION, 1)], 1).reshape(-1)


def replace_recurrent(editor: GraphEditor, activations: Activations) -> dict[str, str]:
    """Replaces every recurrent node by integer arithmetic. Returns matrix -> the arithmetic of its product."""
    replaced: dict[str, str] = {}
    for node in list(editor.graph):
        if node.op_type not in ("LSTM", *CELLS) or not _is_rewritable(node):
            continue
        is_lstm = node.op_type == "LSTM"
        codes = (activations.calibrated if is_lstm else activations.of)(operand(node))
        if codes.row_scale is not None:
            # Nothing bounds the inputs, as in a user's module with a projection before it: it stays in fp32.
            continue
        (_LstmLayer if is_lstm else _ScannedLayer)(editor, activations, node).replace(codes)
        arithmetic = (
            f"int8 in codes to {LARGEST_WEIGHT} with a scale per column; inputs and hidden states uint8 in fixed steps"
        )
        replaced |= {operand(node, place).name or "": arithmetic for place in (1, 2)}
    return replaced


def _is_rewritable(node: ir.Node) -> bool:
    """Returns True if a node has the form of our own encoders' layers; others, in users' modules, stay in fp32.

    They have lengths, no first states, and outputs whose directions are concatenated.
    """
    if len(node.inputs) != 5 or node.inputs[4] is None:
        return False
    for place, output in enumerate(node.outputs):
        for transposed in output.consumers():
            for flattened in transposed.outputs[0].consumers():
                shape = flattened.outputs[0].shape
                # All states [B, S, D * H]; last ones [B, D * H].
                rank = 2 if place else 3
                if (transposed.op_type, flattened.op_type) != ("Transpose", "Reshape") or len(shape or ()) != rank:
                    return False
    return True


class _Layer:
    """One recurrent node, as export/tracing.py writes it."""

    def __init__(self, editor: GraphEditor, activations: Activations, node: ir.Node) -> None:
        self._editor = editor
        self._activations = activations
        self._node = node
        self._lengths = operand(node, 4)
        self._weights, self._recurrent, self._biases = (_weights(node, place) for place in (1, 2, 3))
        self._num_directions, _, self._hidden_size = self._recurrent.shape

    def _put(self, output: int, codes: ir.Value) -> None:
        """Replaces an output of the node that is hidden states."""
        for flattened in self._flattened(output):
            values = self._activations.values(codes, HIDDEN_STEP)
            self._editor.replace(flattened, values)
            steps = np.full(self._num_directions * self._hidden_size, HIDDEN_STEP)
            self._activations.set(values, Codes(codes, steps))

    def _flattened(self, output: int) -> Iterator[ir.Value]:
        """Yields the uses of an output of the node: transposed, with its directions concatenated."""
        for transposed in list(self._node.outputs[output].consumers()) if output < len(self._node.outputs) else ():
            for flattened in list(transposed.outputs[0].consumers()):
                assert (transposed.op_type, flattened.op_type) == ("Transpose", "Reshape")
                yield flattened.outputs[0]


def _weights(node: ir.Node, place: int) -> Matrix:
    values = constant(node.inputs[place])
    assert values is not None, "a trained layer's weights are constants"
    return values


class _ScannedLayer(_Layer):
    """A GRU or tanh layer."""

    def replace(self, inputs: Codes) -> None:
        """Replaces the node by a Scan with its preparation and results."""
        editor, operator = self._editor, self._node.op_type
        self._lengths = editor.add("Cast", [self._lengths], to=ir.DataType.INT64)
        body = ScanBody(operator, self._hidden_size)
        for weights, recurrent, biases in zip(self._weights, self._recurrent, self._biases, strict=True):
            body.add_direction(*stacked(operator, weights.T * inputs.steps[:, None], recurrent.T * HIDDEN_STEP, biases))
        num_sources = editor.add("Shape", [self._lengths])
        shape = editor.add("Concat", [num_sources, editor.integers(self._hidden_size)], axis=0)
        codes_zero, zero = self._activations.zero, self._activations.number(0.0)
        initial = [editor.add("Expand", [codes_zero if coded else zero, shape]) for coded in body.coded_states]
        scanned = [inputs.value, self._reversed(inputs.value)][: self._num_directions]
        outputs = editor.add_many(
            "Scan",
            [*initial, *scanned],
            len(initial) + self._num_directions,
            body=body.to_graph(),
            num_scan_inputs=self._num_directions,
        )
        codes = outputs[len(initial) :]
        forward, *backward = codes
        everywhere = self._joined([forward, *(self._reversed(value) for value in backward)])
        self._put(0, editor.add("Transpose", [everywhere], perm=[1, 0, 2]))
        ends, rows = self._ends(num_sources), editor.integers(-1, self._hidden_size)
        flat = [editor.add("Reshape", [value, rows]) for value in codes]
        self._put(1, self._joined([editor.add("Gather", [value, ends], axis=0) for value in flat]))

    def _reversed(self, value: ir.Value) -> ir.Value:
        """Returns [S, B, ...] with each source reversed within its length."""
        return self._editor.add("ReverseSequence", [value, self._lengths], time_axis=0, batch_axis=1)

    def _ends(self, num_sources: ir.Value) -> ir.Value:
        """Returns the index of each source's last state among [S B] states: (length - 1) B + its own index."""
        editor = self._editor
        count = editor.add("Squeeze", [num_sources])
        zero, unit = (editor.add_constant(np.int64(number), "integer") for number in (0, 1))
        places = editor.add("Range", [zero, count, unit])
        return editor.add("Add", [editor.add("Mul", [editor.add("Sub", [self._lengths, unit]), count]), places])

    def _joined(self, parts: Sequence[ir.Value]) -> ir.Value:
        return self._editor.add("Concat", parts, axis=-1) if len(parts) > 1 else parts[0]


class _LstmLayer(_Layer):
    """An LSTM layer. Its states leave it as codes, without the calibration units."""

    def replace(self, codes: Codes) -> None:
        """Replaces the node by ONNX Runtime's; the codes of its inputs have calibration constants."""
        steps = codes.steps[:, None]
        of_inputs, of_hidden = np.split(self._biases, 2, axis=1)
        matrices = [
            (np.pad(weights.T, ((len(steps) - weights.shape[1], 0), (0, 0))) * steps, recurrent.T, bias)
            for weights, recurrent, bias in zip(self._weights, self._recurrent, of_inputs + of_hidden, strict=True)
        ]
        # In units of a step: the node's own quantization then returns the same codes.
        inputs = self._activations.values(codes.value, 1.0)
        states, final, cells = add_lstm(self._editor, inputs, matrices, self._lengths)
        hidden, last_hidden = (self._activations.quantized(value, HIDDEN_STEP) for value in (states, final))
        self._put(0, self._rows(hidden, (2, 0, 1, 3)))
        self._put(1, self._rows(last_hidden, (1, 0, 2)))
        for flattened in self._flattened(2):
            self._editor.replace(flattened, self._rows(cells, (1, 0, 2)))

    def _rows(self, states: ir.Value, order: Sequence[int]) -> ir.Value:
        """Returns the directions side by side without calibration units: [..., D H] from [..., D, ..., H + P]."""
        editor = self._editor
        codes = editor.add("Transpose", [states], perm=order)
        ends = [editor.integers(place) for place in (0, self._hidden_size, -1)]
        kept = editor.add("Slice", [codes, *ends])
        together = editor.integers(*[0] * (len(order) - 2), self._num_directions * self._hidden_size)
        return editor.add("Reshape", [kept, together])
