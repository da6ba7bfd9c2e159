"""ONNX files in protobuf's wire format: reads those of an exporter, bounds their integer factors, and writes fields.

The server has no `onnx`, and a message class of protobuf would copy the weights. Parsers differ on unusual bytes: a tag
of more than 32 bits, a field that occurs twice, a number with more bytes than it needs. The reader refuses unknown
fields, and encodings that no writer of protobuf chooses. A file that passes means the same to every parser. ONNX
Runtime and the golden examples decide if the graph is sound.

ONNX Runtime multiplies activations a (uint8) by factors b (int8). On x86 processors without VNNI its kernels add two
neighbouring products in signed 16 bits and cut off larger sums. There are none if every factor is at most 64:

    |a1 b1 + a2 b2| <= 255 (|b1| + |b2|) <= 255 * 128 = 32,640 <= 32,767

Activations count with all of their 255: kernels multiply the bytes as they are and subtract zero points afterwards.
Factors are constants, or tensors of the state (keys and memory) whose codes the encoder clips.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from attendant.runtime.bundle.manifest import GraphPair, StateTensor
from attendant.runtime.bundle.reading import MAX_GRAPH_BYTES, Unfit, read_file

_ONNX: Final = """
    Abs Add And AveragePool BatchNormalization BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Clip Concat Constant
    ConstantOfShape Conv Cos CumSum DequantizeLinear Div Einsum Elu Equal Erf Exp Expand Flatten Floor GRU Gather
    GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GroupNormalization
    HardSigmoid HardSwish Identity InstanceNormalization IsInf IsNaN LSTM LayerNormalization LeakyRelu Less LessOrEqual
    Log LogSoftmax LpNormalization MatMul MatMulInteger Max MaxPool Mean Min Mish Mod Mul Neg Not OneHot Or PRelu Pad
    Pow QuantizeLinear RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape ReverseSequence Round Scan ScatterElements ScatterND
    Selu Shape Sigmoid Sign Sin Size Slice Softmax Softplus Softsign Split Sqrt Squeeze Sub Sum Swish Tan Tanh
    ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where Xor
"""
OPERATORS: Final[Mapping[str, frozenset[str]]] = {
    "": frozenset(_ONNX.split()),
    "com.microsoft": frozenset(("DynamicQuantizeLSTM", "MatMulIntegerToFloat")),
}
"""Domain -> functions of tensors that torch's exporter writes. `Loop` is missing because it may not end, `If` because
it chooses a part at run time; other products of integers, because their factors are not bounded here."""

LARGEST_FACTOR: Final = 64
FACTORS: Final[Mapping[str, tuple[int, ...]]] = {
    "MatMulInteger": (1,),
    "MatMulIntegerToFloat": (1,),
    "DynamicQuantizeLSTM": (1, 2),
}
"""Operator -> the places of its inputs that are int8 factors."""

MOVING: Final = frozenset(("Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Slice", "Gather", "Expand"))
"""Operators whose output has only elements of their first input."""

MAX_FIELDS: Final = 1_000_000  # A second of reading. A graph of the exporter has some thousands.
MAX_INT32: Final = 2**31 - 1
MAX_VARINT_BYTES: Final = 10
VARINT, DELIMITED, FIXED32 = 0, 2, 5


class _Field(NamedTuple):
    """A field of a message.

    Attributes:
        wire: how it is encoded.
        is_repeated: it may occur several times. Parsers may join, replace or merge values of other fields.
        message: the kind of message that it holds, if it holds one.
        is_small: it is a number of 32 bits. Parsers may drop further bits.
    """

    wire: int
    is_repeated: bool = False
    message: str = ""
    is_small: bool = False


def _single(message: str) -> _Field:
    return _Field(DELIMITED, message=message)


def _repeated(message: str = "") -> _Field:
    return _Field(DELIMITED, is_repeated=True, message=message)


_BYTES, _NUMBER, _SMALL = _Field(DELIMITED), _Field(VARINT), _Field(VARINT, is_small=True)
_NUMBERS, _FLOATS = _Field(VARINT, is_repeated=True), _Field(FIXED32, is_repeated=True)

# message -> number -> field (onnx.proto, as far as the exporter writes it)
_FIELDS: Final[Mapping[str, Mapping[int, _Field]]] = {
    "model": {
        **{1: _NUMBER, 2: _BYTES, 3: _BYTES, 4: _BYTES, 5: _NUMBER, 6: _BYTES},
        **{7: _single("graph"), 8: _repeated("opset")},
    },
    "opset": {1: _BYTES, 2: _NUMBER},
    "graph": {
        **{1: _repeated("node"), 2: _BYTES, 5: _repeated("tensor"), 10: _BYTES},
        **{11: _repeated("value"), 12: _repeated("value"), 13: _repeated("value")},
    },
    "node": {1: _repeated(), 2: _repeated(), 3: _BYTES, 4: _BYTES, 5: _repeated("attribute"), 6: _BYTES, 7: _BYTES},
    "attribute": {
        **{1: _BYTES, 2: _Field(FIXED32), 3: _NUMBER, 4: _BYTES, 5: _single("tensor"), 6: _single("graph")},
        **{7: _FLOATS, 8: _NUMBERS, 9: _repeated(), 13: _BYTES, 20: _SMALL},
    },
    "tensor": {
        **{1: _NUMBERS, 2: _SMALL, 4: _BYTES, 5: _BYTES, 7: _BYTES},
        **{8: _BYTES, 9: _BYTES, 10: _BYTES, 11: _BYTES, 12: _BYTES},
    },
    "value": {1: _BYTES, 2: _single("type"), 3: _BYTES},
    "type": {1: _single("tensor_type"), 6: _BYTES},
    "tensor_type": {1: _SMALL, 2: _single("shape")},
    "shape": {1: _repeated("dimension")},
    "dimension": {1: _NUMBER, 2: _BYTES, 3: _BYTES},
}
_MODEL_GRAPH = 7
_GRAPH_NODES, _GRAPH_CONSTANTS, _GRAPH_INPUTS, _GRAPH_OUTPUTS = 1, 5, 11, 12
_NODE_INPUTS, _NODE_OUTPUTS, _NODE_OPERATOR, _NODE_ATTRIBUTES, _NODE_DOMAIN = 1, 2, 4, 5, 7
_ATTRIBUTE_GRAPH = 6
_TENSOR_TYPE, _TENSOR_NAME, _TENSOR_BYTES, _TENSOR_OUTSIDE = 2, 8, 9, (13, 14)
_VALUE_NAME = 1
_UINT8, _INT8 = 2, 3

_Message = dict[int, list[Any]]
"""Field number -> values: numbers, bytes (not copied), or messages."""


class _Reader:
    """Reads the messages of one file."""

    def __init__(self, content: bytes) -> None:
        self._view = memoryview(content)
        self._num_fields = 0

    def message(self, kind: str, position: int, end: int, *, is_body: bool = False) -> _Message:
        """Returns the fields of the message between two positions; `is_body` if it belongs to a node's own graph."""
        values: _Message = {}
        while position < end:
            self._num_fields += 1
            if self._num_fields > MAX_FIELDS:
                raise Unfit(f"more than {MAX_FIELDS} fields: no export writes such a graph")
            key, position = self._varint(position, end)
            number, wire = key >> 3, key & 7
            field = _FIELDS[kind].get(number)
            if number >= 2**29:
                raise Unfit("no ONNX model: a field's number is out of range")
            if kind == "tensor" and number in _TENSOR_OUTSIDE:
                raise Unfit("the values of a tensor lie in another file")
            if field is None or field.wire != wire:
                raise Unfit(f"no ONNX model of an export: a {kind} has a field {number} of wire type {wire}")
            if number in values and not field.is_repeated:
                raise Unfit(f"a {kind} has its field {number} twice")
            value: Any
            size = 4
            if wire != FIXED32:
                value, position = self._varint(position, end)
                size = value if wire == DELIMITED else 0
            if field.is_small and value > MAX_INT32:
                raise Unfit(f"the field {number} of a {kind} has more than 32 bits")
            if size > end - position:
                raise Unfit("no ONNX model: it is cut off")
            if field.message:
                if field.message == "graph" and is_body:
                    raise Unfit("a graph within a graph within a graph: no export writes it")
                is_inner = is_body or kind == "attribute"
                value = self.message(field.message, position, position + size, is_body=is_inner)
            elif wire != VARINT:
                value = self._view[position : position + size]
            position += size
            values.setdefault(number, []).append(value)
        return values

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        """Returns the number at a position, and the position after it.

        Raises:
            Unfit: it is cut off, has more than 64 bits, or more bytes than it needs.
        """
        value = 0
        for length in range(min(MAX_VARINT_BYTES, end - position)):
            byte = self._view[position + length]
            value |= (byte & 0x7F) << 7 * length
            if byte < 0x80:
                if (byte == 0 and length > 0) or value >= 2**64:
                    break
                return value, position + length + 1
        raise Unfit("no ONNX model: a number is cut off, or not encoded as short as it can be")


class Node:
    """A node, and the graphs in its attributes."""

    def __init__(self, message: _Message, graph: "Graph") -> None:
        """Raises Unfit: the exporter writes no such operator."""
        self.operator, domain = _text(message, _NODE_OPERATOR), _text(message, _NODE_DOMAIN)
        if self.operator not in OPERATORS.get(domain, ()):
            raise Unfit(f"the operator {self.operator!r} of {domain or 'ai.onnx'!r} is not among those of an export")
        self.inputs, self.outputs = _texts(message, _NODE_INPUTS), _texts(message, _NODE_OUTPUTS)
        attributes = message.get(_NODE_ATTRIBUTES, ())
        self.bodies = [Graph(body, graph) for each in attributes for body in each.get(_ATTRIBUTE_GRAPH, ())]


class Graph:
    """A graph, or the body of a node, whose `outer` graph is the node's.

    Attributes:
        bounds: name -> the largest |x| of an input of the graph; None if it is not known.
    """

    def __init__(self, message: _Message, outer: "Graph | None" = None) -> None:
        self.outer = outer
        self.nodes = [Node(node, self) for node in message.get(_GRAPH_NODES, ())]
        self.bounds: dict[str, int | None] = dict.fromkeys(
            _text(value, _VALUE_NAME) for value in message.get(_GRAPH_INPUTS, ())
        )
        self._constants = {_text(tensor, _TENSOR_NAME): tensor for tensor in message.get(_GRAPH_CONSTANTS, ())}
        self._makers = {output: node for node in self.nodes for output in node.outputs}

    def maker(self, name: str) -> Node | None:
        """Returns the node that computes a value; None if it is an input or a constant."""
        return self._makers.get(name)

    def users(self, name: str) -> list[Node]:
        return [node for node in self.nodes if name in node.inputs]

    def largest(self, name: str) -> int | None:
        """Returns a bound of a value's |x|; None if the graph shows none."""
        graph: Graph | None = self
        seen: set[str] = set()
        while graph is not None and name not in seen:
            if name in graph.bounds:
                return graph.bounds[name]
            if name in graph._constants:
                return _largest_code(graph._constants[name])
            node = graph._makers.get(name)
            if node is None:
                graph = graph.outer
            elif node.operator in MOVING and node.inputs:
                # No graph that runs has a circle, but this one has not run yet.
                seen.add(name)
                name = node.inputs[0]
            elif node.operator == "Clip" and len(node.inputs) == 3:
                ends = [_largest_code(graph._constants[end]) for end in node.inputs[1:] if end in graph._constants]
                known = [end for end in ends if end is not None]
                return max(known) if len(known) == 2 else None
            else:
                return None
        return None

    def wide_factors(self) -> list[str]:
        """Returns one line for each factor, here or in a body, that may exceed 64."""
        lines = []
        for node in self.nodes:
            for place in FACTORS.get(node.operator, ()):
                name = node.inputs[place] if place < len(node.inputs) else ""
                largest = self.largest(name)
                if largest is None or largest > LARGEST_FACTOR:
                    size = "of any size" if largest is None else f"up to {largest}"
                    whose = f"{node.operator} {', '.join(node.outputs[:1])!r}: the factor {name!r}"
                    lines.append(f"{whose} has codes {size}, must be at most {LARGEST_FACTOR}")
            for body in node.bodies:
                lines += body.wide_factors()
        return lines


def read_graph(content: bytes) -> Graph:
    """Returns the graph of an ONNX file.

    Raises:
        Unfit: no export writes such a file; the message has the reason, without the file's name.
    """
    model = _Reader(content).message("model", 0, len(content))
    if _MODEL_GRAPH not in model:
        raise Unfit("no ONNX model")
    return Graph(model[_MODEL_GRAPH][0])


def wide_factors(folder: Path, pair: GraphPair) -> list[str]:
    """Returns one line for each factor of a precision's graphs that may exceed 64; none if all products are exact.

    Args:
        folder: the bundle's.

    Raises:
        OSError, Unfit: a graph can't be read.
    """
    encoder, step = (read_file(folder / spec.file, MAX_GRAPH_BYTES) for spec in (pair.encoder, pair.decoder_step))
    return [
        *(f"{pair.encoder.file}: {line}" for line in wide_factors_of(encoder)),
        *(f"{pair.decoder_step.file}: {line}" for line in wide_factors_of(step, encoder, pair.state)),
    ]


def wide_factors_of(content: bytes, encoder: bytes | None = None, state: Sequence[StateTensor] = ()) -> list[str]:
    """Returns one line for each factor of a graph that may exceed 64.

    Args:
        content: an ONNX model.
        encoder: the encoder's model, if `content` is a step: it computes the tensors of the state.
        state: the tensors that pass between the two.

    Raises:
        Unfit: a graph is not as an export writes it.
    """
    graph = read_graph(content)
    if encoder is not None:
        first = read_graph(encoder)
        # After the first step, a tensor that steps change is not the encoder's.
        bounds = {tensor.input: first.largest(tensor.input) for tensor in state if tensor.output is None}
        graph.bounds |= {name: bound for name, bound in bounds.items() if bound is not None}
    return graph.wide_factors()


def _largest_code(tensor: _Message) -> int | None:
    """Returns the largest |x| of a constant of bytes; None if it has another type or notation.

    Unsigned factors count as 0: the kernels for them add in 32 bits.
    """
    kind, content = tensor.get(_TENSOR_TYPE, [0])[0], tensor.get(_TENSOR_BYTES, [b""])[0]
    if kind not in (_UINT8, _INT8) or not len(content):
        return None
    if kind == _UINT8:
        return 0
    codes = np.frombuffer(content, np.int8)
    return max(-int(codes.min()), int(codes.max()))


def _text(message: _Message, number: int) -> str:
    return "".join(_texts(message, number))


def _texts(message: _Message, number: int) -> list[str]:
    return [bytes(value).decode(errors="replace") for value in message.get(number, ())]


def outputs_part(names: Sequence[str]) -> bytes:
    """Returns the end of an ONNX file that makes these values outputs: parsers merge it into the graph before it."""
    values = (message_field(_GRAPH_OUTPUTS, text_field(_VALUE_NAME, name)) for name in names)
    return message_field(_MODEL_GRAPH, b"".join(values)) if names else b""


def number_field(number: int, value: int) -> bytes:
    """Returns a field of a message that has a number, which is not negative."""
    return bytes([*_varint(number << 3 | VARINT), *_varint(value)])


def text_field(number: int, text: str) -> bytes:
    return message_field(number, text.encode())


def message_field(number: int, content: bytes) -> bytes:
    return bytes([*_varint(number << 3 | DELIMITED), *_varint(len(content))]) + content


def _varint(value: int) -> Iterator[int]:
    """Yields seven bits per byte, the lowest first; the eighth bit is set if more follow."""
    assert value >= 0
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
