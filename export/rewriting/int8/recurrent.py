"""The encoder's recurrent layers in integers.

Shapes: B sources, S positions, I inputs, H hidden size of one direction, D = 1 or 2 directions, P calibration units
(lstm.py), G = 4 (LSTM), 3 (GRU) or 1 (tanh) gates.

An LSTM becomes a node of ONNX Runtime's own (lstm.py). It has none for the other cells, which become a Scan over the
positions (scan_body.py). Both directions go through the same Scan, the backward one over sources that were reversed
within their lengths: padding then comes last in both and touches no valid position.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from attendant.export.rewriting.graph import GraphEditor, constant, operand
from attendant.export.rewriting.int8.activations import Activations, Codes
from attendant.export.rewriting.int8.lstm import add_lstm
from attendant.export.rewriting.int8.products import LARGEST_WEIGHT, Matrix
from attendant.export.rewriting.int8.scan_body import CELLS, HIDDEN_STEP, ScanBody, stacked


def replace_recurrent(editor: GraphEditor, activations: Activations) -> dict[str, str]:
    """Replaces every recurrent node by integer arithmetic.

    Returns:
        For each matrix, how its product is computed.
    """
    replaced: dict[str, str] = {}
    for node in list(editor.graph):
        if node.op_type == "LSTM":
            _LstmLayer(editor, activations, node).replace()
        elif node.op_type in CELLS:
            _ScannedLayer(editor, activations, node).replace()
        else:
            continue
        arithmetic = (
            f"int8 in codes to {LARGEST_WEIGHT} with a scale per column; inputs and hidden states uint8 in fixed steps"
        )
        replaced |= {operand(node, place).name or "": arithmetic for place in (1, 2)}
    return replaced


class _Layer:
    """One recurrent node, as export/tracing/onnx_layers.py writes it."""

    def __init__(self, editor: GraphEditor, activations: Activations, node: ir.Node) -> None:
        self._editor = editor
        self._activations = activations
        self._node = node
        self._inputs, self._lengths = operand(node, 0), operand(node, 4)
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
        """What the graph makes of an output of the node: transposed, its directions laid side by side."""
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

    def replace(self) -> None:
        """Puts the Scan, and what prepares and follows it, in the node's place."""
        editor, operator = self._editor, self._node.op_type
        inputs = self._activations.of(self._inputs)
        self._lengths = editor.add("Cast", [self._lengths], to=ir.DataType.INT64)
        assert inputs.row_scale is None, "embeddings and hidden states are bounded"
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
        """[S, B, ...] with each source reversed within its length."""
        return self._editor.add("ReverseSequence", [value, self._lengths], time_axis=0, batch_axis=1)

    def _ends(self, num_sources: ir.Value) -> ir.Value:
        """Where each source's last state stands among [S B] states: (length - 1) B + its own place."""
        editor = self._editor
        count = editor.add("Squeeze", [num_sources])
        zero, one = (editor.add_constant(np.int64(number), "integer") for number in (0, 1))
        places = editor.add("Range", [zero, count, one])
        return editor.add("Add", [editor.add("Mul", [editor.add("Sub", [self._lengths, one]), count]), places])

    def _joined(self, parts: Sequence[ir.Value]) -> ir.Value:
        return self._editor.add("Concat", parts, axis=-1) if len(parts) > 1 else parts[0]


class _LstmLayer(_Layer):
    """An LSTM layer. Its states leave it as codes, without the calibration units."""

    def replace(self) -> None:
        """Puts ONNX Runtime's node, and what prepares and follows it, in the node's place."""
        codes = self._activations.calibrated(self._inputs)
        steps = codes.steps[:, None]
        of_inputs, of_hidden = np.split(self._biases, 2, axis=1)
        matrices = [
            (np.pad(weights.T, ((len(steps) - weights.shape[1], 0), (0, 0))) * steps, recurrent.T, bias)
            for weights, recurrent, bias in zip(self._weights, self._recurrent, of_inputs + of_hidden, strict=True)
        ]
        # In units of a step: the node's own quantization then gives the codes back as they are.
        inputs = self._activations.values(codes.value, 1.0)
        states, final, cells = add_lstm(self._editor, inputs, matrices, self._lengths)
        hidden, last_hidden = (self._activations.quantized(value, HIDDEN_STEP) for value in (states, final))
        self._put(0, self._rows(hidden, (2, 0, 1, 3)))
        self._put(1, self._rows(last_hidden, (1, 0, 2)))
        for flattened in self._flattened(2):
            self._editor.replace(flattened, self._rows(cells, (1, 0, 2)))

    def _rows(self, states: ir.Value, order: Sequence[int]) -> ir.Value:
        """The directions side by side, the model's own units alone: [..., D H] from [..., D, ..., H + P]."""
        editor = self._editor
        codes = editor.add("Transpose", [states], perm=order)
        ends = [editor.integers(place) for place in (0, self._hidden_size, -1)]
        kept = editor.add("Slice", [codes, *ends])
        together = editor.integers(*[0] * (len(order) - 2), self._num_directions * self._hidden_size)
        return editor.add("Reshape", [kept, together])
