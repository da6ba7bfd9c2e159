"""Reads an ONNX file as protobuf's wire format, and accepts only what the exporter writes.

The server has no `onnx`, and a message class of our own would copy the weights. Parsers differ in what they make of
unusual bytes: of a tag of more than 32 bits, a field that stands twice, a number that is longer than it must be. So
this reader has no opinion on them: every field that it does not know, and every encoding that a writer of protobuf
does not choose, is refused. Whatever passes means the same to every parser, and has no operators, attributes or tensors
that were not seen here. Whether the graph is sound is decided by ONNX Runtime and the golden examples.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from attendant.runtime.bundle.reading import Unfit

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
_TENSOR_NAME, _OUTSIDE = 8, frozenset((13, 14))


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
