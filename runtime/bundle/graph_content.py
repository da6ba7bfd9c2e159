"""Reads an ONNX file as protobuf's wire format, accepts only what the exporter writes, and bounds its integer factors.

The server has no `onnx`, and a message class of our own would copy the weights. Parsers differ in what they make of
unusual bytes: of a tag of more than 32 bits, a field that occurs twice, a number that is longer than it must be. So
this reader has no opinion on them: every field that it does not know, and every encoding that a writer of protobuf
does not choose, is refused. What passes means the same to every parser, and has no operators, attributes or tensors
that were not seen here. ONNX Runtime and the golden examples decide if the graph is sound.

ONNX Runtime multiplies activations a (uint8) by factors b (int8). On x86 processors without VNNI its kernels add two
neighbouring products in signed 16 bits and cut off what is beyond. That never happens if every factor is at most 64:

    |a1 b1 + a2 b2| <= 255 (|b1| + |b2|) <= 255 * 128 = 32,640 <= 32,767

Activations count with all of their 255: kernels multiply the bytes as they are and subtract zero points afterwards.
Factors are constants, or tensors of the state (keys and memory) whose codes the encoder clips.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from attendant.runtime.bundle.manifest import GraphPair, StateTensor
from attendant.runtime.bundle.reading import MAX_GRAPH_BYTES, Unfit, read_file

_ONNX: Final = """
    Abs Add And Cast Clip Concat Constant ConstantOfShape CumSum DequantizeLinear Div Equal Exp Expand GRU Gather
    GatherElements GatherND Gemm Greater GreaterOrEqual Identity LSTM Less LessOrEqual Log LogSoftmax MatMul
    MatMulInteger Max Min Mul Neg Not Or Pow QuantizeLinear RNN Range Reciprocal ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceSum Reshape ReverseSequence Scan ScatterElements Shape Sigmoid Slice Softmax Softplus Split Sqrt
    Squeeze Sub Sum Tanh TopK Transpose Unsqueeze Where
"""
OPERATORS: Final[Mapping[str, frozenset[str]]] = {
    "": frozenset(_ONNX.split()),
    "com.microsoft": frozenset(("DynamicQuantizeLSTM", "MatMulIntegerToFloat")),
}
"""By domain, what the exporter writes. A `Loop` ends when it likes to, an `If` chooses what is computed."""

MAX_FIELDS: Final = 1_000_000
"""Read in about a second. A graph of the exporter has some thousands."""

MAX_INT32: Final = 2**31 - 1
MAX_VARINT: Final = 10
"""Bytes of a number."""

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
_SIZES: Final = {FIXED64: 8, FIXED32: 4}


class _Field(NamedTuple):
    """A field of a message.

    Attributes:
        wire: how it is encoded.
        is_repeated: it may stand several times. Parsers may join, replace or merge values of other fields.
        message: what it holds, if that is a message.
        is_small: a number of 32 bits, of which parsers may drop the others.
    """

    wire: int
    is_repeated: bool = False
    message: str = ""
    is_small: bool = False


def _one(message: str) -> _Field:
    return _Field(DELIMITED, message=message)


def _many(message: str = "") -> _Field:
    return _Field(DELIMITED, is_repeated=True, message=message)


_BYTES, _NUMBER, _SMALL = _Field(DELIMITED), _Field(VARINT), _Field(VARINT, is_small=True)
_NUMBERS, _FLOATS = _Field(VARINT, is_repeated=True), _Field(FIXED32, is_repeated=True)

# message -> number -> field (onnx.proto, as far as the exporter writes it)
_FIELDS: Final[Mapping[str, Mapping[int, _Field]]] = {
    "model": {
        **{1: _NUMBER, 2: _BYTES, 3: _BYTES, 4: _BYTES, 5: _NUMBER, 6: _BYTES},
        **{7: _one("graph"), 8: _many("opset")},
    },
    "opset": {1: _BYTES, 2: _NUMBER},
    "graph": {
        **{1: _many("node"), 2: _BYTES, 5: _many("tensor"), 10: _BYTES},
        **{11: _many("value"), 12: _many("value"), 13: _many("value")},
    },
    "node": {1: _many(), 2: _many(), 3: _BYTES, 4: _BYTES, 5: _many("attribute"), 6: _BYTES, 7: _BYTES},
    "attribute": {
        **{1: _BYTES, 2: _Field(FIXED32), 3: _NUMBER, 4: _BYTES, 5: _one("tensor"), 6: _one("graph")},
        **{7: _FLOATS, 8: _NUMBERS, 9: _many(), 13: _BYTES, 20: _SMALL},
    },
    "tensor": {
        **{1: _NUMBERS, 2: _SMALL, 4: _BYTES, 5: _BYTES, 7: _BYTES},
        **{8: _BYTES, 9: _BYTES, 10: _BYTES, 11: _BYTES, 12: _BYTES},
    },
    "value": {1: _BYTES, 2: _one("type"), 3: _BYTES},
    "type": {1: _one("tensor_type"), 6: _BYTES},
    "tensor_type": {1: _SMALL, 2: _one("shape")},
    "shape": {1: _many("dimension")},
    "dimension": {1: _NUMBER, 2: _BYTES, 3: _BYTES},
}
_OP_TYPE, _DOMAIN = 4, 7
_OUTSIDE = frozenset((13, 14))


def check_graph(content: bytes) -> None:
    """Checks the bytes of an ONNX file. Weights are skipped.

    Raises:
        Unfit: the message says why, without the file's name.
    """
    view, num_fields = memoryview(content), 0
    waiting = [("model", 0, len(content), False)]
    has_graph = False
    while waiting:
        message, begin, end, is_body = waiting.pop()
        has_graph |= message == "graph"
        known, texts, seen = _FIELDS[message], dict[int, bytes](), set[int]()
        for number, wire, value, size in fields(view, begin, end):
            num_fields += 1
            if num_fields > MAX_FIELDS:
                raise Unfit(f"more than {MAX_FIELDS} fields: no export writes such a graph")
            field = known.get(number)
            if message == "tensor" and number in _OUTSIDE:
                raise Unfit("the values of a tensor lie in another file")
            if field is None or field.wire != wire:
                raise Unfit(f"a {message} has a field {number} of wire type {wire}: no export writes it")
            if number in seen and not field.is_repeated:
                raise Unfit(f"a {message} has its field {number} twice")
            seen.add(number)
            if field.is_small and value > MAX_INT32:
                raise Unfit(f"the field {number} of a {message} has more than 32 bits")
            if field.message == "graph" and message == "attribute" and is_body:
                raise Unfit("a graph within a graph within a graph: no export writes it")
            if field.message:
                waiting.append((field.message, value, value + size, is_body or message == "attribute"))
            elif message == "node" and number in (_OP_TYPE, _DOMAIN):
                texts[number] = bytes(view[value : value + size])
        if message == "node":
            _check_operator(texts.get(_OP_TYPE, b""), texts.get(_DOMAIN, b""))
    if not has_graph:
        raise Unfit("no ONNX model")


def _check_operator(name_bytes: bytes, domain_bytes: bytes) -> None:
    name, domain = name_bytes.decode(errors="replace"), domain_bytes.decode(errors="replace")
    if name not in OPERATORS.get(domain, ()):
        raise Unfit(f"the operator {name!r} of {domain or 'ai.onnx'!r} is not among those of an export")


def fields(view: memoryview, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, wire type, value or where it begins, its size) of each field.

    Raises:
        Unfit: it is no protobuf message, or not as a writer of protobuf encodes it.
    """
    while position < end:
        key, position = _varint(view, position, end)
        number, wire = key >> 3, key & 7
        if not 0 < number < 2**29:
            raise Unfit("no ONNX model: a field's number is out of range")
        if wire == VARINT:
            value, position = _varint(view, position, end)
            yield number, wire, value, 0
            continue
        if wire == DELIMITED:
            size, position = _varint(view, position, end)
        elif wire in _SIZES:
            size = _SIZES[wire]
        else:
            raise Unfit("no ONNX model")
        if size > end - position:
            raise Unfit("no ONNX model: it is cut off")
        yield number, wire, position, size
        position += size


def _varint(view: memoryview, position: int, end: int) -> tuple[int, int]:
    """The number that begins here, and where the next field does.

    Raises:
        Unfit: it is cut off, has more than 64 bits, or more bytes than it needs.
    """
    value = 0
    for length in range(min(MAX_VARINT, end - position)):
        byte = view[position + length]
        value |= (byte & 0x7F) << 7 * length
        if byte < 0x80:
            if (byte == 0 and length > 0) or value >= 2**64:
                raise Unfit("no ONNX model: a number is not encoded as short as it can be")
            return value, position + length + 1
    raise Unfit("no ONNX model")


LARGEST_FACTOR: Final = 64

FACTORS: Final[Mapping[str, tuple[int, ...]]] = {
    "MatMulInteger": (1,),
    "MatMulIntegerToFloat": (1,),
    "DynamicQuantizeLSTM": (1, 2),
}
"""Operator -> which of its inputs are int8 factors."""

MOVING: Final = frozenset(("Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Slice", "Gather", "Expand"))
"""Operators whose output has only elements of their first input."""

# Fields of onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_CONSTANT, _GRAPH_INPUT = 1, 5, 11
_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR, _NODE_ATTRIBUTE = 1, 2, 4, 5
_ATTRIBUTE_GRAPH = 6
_TENSOR_TYPE, _TENSOR_NAME, _TENSOR_BYTES = 2, 8, 9
_VALUE_NAME = 1
_UINT8, _INT8 = 2, 3


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


def wide_factors_of(graph: bytes, encoder: bytes | None = None, state: Sequence[StateTensor] = ()) -> list[str]:
    """Returns one line for each factor of a graph that may exceed 64.

    Args:
        graph: an ONNX model.
        encoder: the encoder's model, if `graph` is a step: it computes the tensors of the state.
        state: the tensors that pass between the two.

    Raises:
        Unfit: a graph is not as an export writes it.
    """
    known: dict[str, int] = {}
    if encoder is not None:
        first = _read_model(encoder)
        # A tensor that steps change is not the encoder's after the first step.
        bounds = {tensor.input: first.largest(tensor.input) for tensor in state if tensor.output is None}
        known = {name: bound for name, bound in bounds.items() if bound is not None}
    return list(_wide_in(_read_model(graph, known)))


@dataclass(slots=True)
class _Node:
    operator: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    bodies: list["_Graph"] = field(default_factory=list)


@dataclass(slots=True)
class _Graph:
    """A graph, or the body of a node.

    Attributes:
        inputs: name -> the largest |x| of an input of the graph; None if it is not known.
        constants: name -> the largest |x|; None if they are no bytes.
        outer: the graph of the node whose body this is; None if it is no body.
    """

    outer: "_Graph | None" = None
    nodes: list[_Node] = field(default_factory=list)
    inputs: dict[str, int | None] = field(default_factory=dict)
    constants: dict[str, int | None] = field(default_factory=dict)
    makers: dict[str, _Node] = field(default_factory=dict)

    def largest(self, name: str) -> int | None:
        """Returns a bound of a value's |x|; None if the graph shows none."""
        graph: _Graph | None = self
        seen: set[str] = set()
        while graph is not None and name not in seen:
            if name in graph.inputs:
                return graph.inputs[name]
            if name in graph.constants:
                return graph.constants[name]
            node = graph.makers.get(name)
            if node is None:
                graph = graph.outer
            elif node.operator in MOVING and node.inputs:
                # No graph that runs goes round in a circle, but this one has not run yet.
                seen.add(name)
                name = node.inputs[0]
            elif node.operator == "Clip" and len(node.inputs) == 3:
                ends = [graph.constants.get(end) for end in node.inputs[1:]]
                known = [end for end in ends if end is not None]
                return max(known) if len(known) == 2 else None
            else:
                return None
        return None


def _wide_in(graph: _Graph) -> Iterator[str]:
    waiting = [graph]
    while waiting:
        graph = waiting.pop()
        for node in graph.nodes:
            waiting += node.bodies
            for place in FACTORS.get(node.operator, ()):
                name = node.inputs[place] if place < len(node.inputs) else ""
                largest = graph.largest(name)
                if largest is None or largest > LARGEST_FACTOR:
                    size = "of any size" if largest is None else f"up to {largest}"
                    what = f"{node.operator} {', '.join(node.outputs[:1])!r}: the factor {name!r}"
                    yield f"{what} has codes {size}, must be at most {LARGEST_FACTOR}"


def _read_model(content: bytes, known: Mapping[str, int] | None = None) -> _Graph:
    check_graph(content)
    graph, view = _Graph(), memoryview(content)
    for number, begin, end in _parts(view, 0, len(content)):
        if number == _MODEL_GRAPH:
            _read_graph(view, begin, end, graph)
    graph.inputs.update(known or {})
    return graph


def _read_graph(view: memoryview, begin: int, end: int, graph: _Graph) -> None:
    for number, first, last in _parts(view, begin, end):
        if number == _GRAPH_NODE:
            node = _read_node(view, first, last, graph)
            graph.nodes.append(node)
            graph.makers.update(dict.fromkeys(node.outputs, node))
        elif number == _GRAPH_CONSTANT:
            name, largest = _read_tensor(view, first, last)
            graph.constants[name] = largest
        elif number == _GRAPH_INPUT:
            names = [_text(view, start, stop) for kind, start, stop in _parts(view, first, last) if kind == _VALUE_NAME]
            graph.inputs.update(dict.fromkeys(names))


def _read_node(view: memoryview, begin: int, end: int, graph: _Graph) -> _Node:
    node = _Node()
    for number, first, last in _parts(view, begin, end):
        if number == _NODE_INPUT:
            node.inputs.append(_text(view, first, last))
        elif number == _NODE_OUTPUT:
            node.outputs.append(_text(view, first, last))
        elif number == _NODE_OPERATOR:
            node.operator = _text(view, first, last)
        elif number == _NODE_ATTRIBUTE:
            for kind, start, stop in _parts(view, first, last):
                if kind == _ATTRIBUTE_GRAPH:
                    node.bodies.append(_Graph(outer=graph))
                    _read_graph(view, start, stop, node.bodies[-1])
    return node


def _read_tensor(view: memoryview, begin: int, end: int) -> tuple[str, int | None]:
    """Returns a constant's name, and the largest |x| of its elements; None if its type or its notation is another.

    Unsigned factors count as 0: the kernels for them add in 32 bits.
    """
    name, kind = "", 0
    content: tuple[int, int] | None = None
    for number, wire, value, size in fields(view, begin, end):
        if number == _TENSOR_TYPE:
            kind = value
        elif number == _TENSOR_NAME and wire == DELIMITED:
            name = _text(view, value, value + size)
        elif number == _TENSOR_BYTES and wire == DELIMITED:
            content = value, size
    if content is None or kind not in (_UINT8, _INT8) or not content[1]:
        return name, None
    if kind == _UINT8:
        return name, 0
    codes = np.frombuffer(view[content[0] : sum(content)], np.int8)
    return name, max(-int(codes.min()), int(codes.max()))


def _parts(view: memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yields the number, beginning and end of each text, byte string or message in a message."""
    for number, wire, value, size in fields(view, begin, end):
        if wire == DELIMITED:
            yield number, value, value + size


def _text(view: memoryview, begin: int, end: int) -> str:
    return bytes(view[begin:end]).decode(errors="replace")
