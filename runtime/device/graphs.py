"""The graphs that reorder a state where it lies: parts joined, rows gathered, positions cut or padded with zeros.

The server has no ONNX library, and no bundle needs to carry these: a handful of nodes is written here in ONNX's own
wire format (protocol buffers: https://protobuf.dev/programming-guides/encoding/, field numbers of onnx/onnx.proto).

For each state tensor, with P parts:

    part p [n_p, ...] -> Slice to `keep` positions -> Pad by `pads`      only with an axis of positions
    Gather(Concat(parts), rows) [len(rows), ...]

`rows`, `keep` and `pads` are inputs, so one session serves every shape.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

ROWS: Final = "rows"
IR_VERSION: Final = 10
OPSET: Final = 20

FLOAT, BOOL, UINT8, INT64, FLOAT16 = 1, 9, 2, 7, 10
ELEMENTS: Final = {"float32": FLOAT, "float16": FLOAT16, "bool": BOOL, "int64": INT64, "uint8": UINT8}
"""numpy's name -> TensorProto.DataType."""

INTEGER_ATTRIBUTE: Final = 2
"""AttributeProto.AttributeType.INT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """What a reordering graph must know of a state tensor.

    Attributes:
        rank: number of axes; the first runs over rows, or sources.
        position_axis: which axis runs over the source's positions; None: none does.
    """

    name: str
    dtype: str
    rank: int
    position_axis: int | None


def part_name(name: str, part: int) -> str:
    return f"{name}.{part}"


def keep_name(part: int) -> str:
    """[1] how many positions of a part are kept."""
    return f"keep.{part}"


def pads_name(rank: int, axis: int, part: int) -> str:
    """[2 * rank] zeros before and behind each axis of a part's tensors, as Pad takes them."""
    return f"pads.{rank}.{axis}.{part}"


def reordering_graph(layouts: Sequence[StateLayout], num_parts: int) -> bytes:
    """An ONNX model: outputs are the layouts' names, inputs `rows`, the parts, and `keep` and `pads` where needed."""
    positional = [layout for layout in layouts if layout.position_axis is not None]
    inputs = [_value(ROWS, INT64, 1)]
    axes = sorted({layout.position_axis for layout in positional if layout.position_axis is not None})
    shapes = sorted({(layout.rank, layout.position_axis) for layout in positional if layout.position_axis is not None})
    nodes: list[bytes] = []
    for part in range(num_parts):
        inputs += [_value(part_name(layout.name, part), ELEMENTS[layout.dtype], layout.rank) for layout in layouts]
        inputs += [_value(keep_name(part), INT64, 1)] if positional else []
        inputs += [_value(pads_name(rank, axis, part), INT64, 1) for rank, axis in shapes]
    for layout in layouts:
        parts = []
        for part in range(num_parts):
            fitted = part_name(layout.name, part)
            if layout.position_axis is not None:
                cut, padded = f"{fitted}.cut", f"{fitted}.padded"
                nodes.append(_node("Slice", [fitted, "zero", keep_name(part), _axis_name(layout.position_axis)], cut))
                nodes.append(_node("Pad", [cut, pads_name(layout.rank, layout.position_axis, part)], padded))
                fitted = padded
            parts.append(fitted)
        joined = parts[0]
        if num_parts > 1:
            joined = f"{layout.name}.joined"
            nodes.append(_node("Concat", parts, joined, axis=0))
        nodes.append(_node("Gather", [joined, ROWS], layout.name, axis=0))
    constants = [_constant("zero", 0), *(_constant(_axis_name(axis), axis) for axis in axes)] if positional else []
    outputs = [_value(layout.name, ELEMENTS[layout.dtype], layout.rank) for layout in layouts]
    return _model(nodes, constants, inputs, outputs)


def _axis_name(axis: int) -> str:
    return f"axis.{axis}"


def _model(
    nodes: Sequence[bytes], constants: Sequence[bytes], inputs: Sequence[bytes], outputs: Sequence[bytes]
) -> bytes:
    graph = b"".join(
        [
            *(_message(1, node) for node in nodes),
            _text(2, "reordering"),
            *(_message(5, constant) for constant in constants),
            *(_message(11, value) for value in inputs),
            *(_message(12, value) for value in outputs),
        ]
    )
    return _number(1, IR_VERSION) + _message(7, graph) + _message(8, _text(1, "") + _number(2, OPSET))


def _node(operator: str, inputs: Sequence[str], output: str, **attributes: int) -> bytes:
    """NodeProto: input 1, output 2, name 3, op_type 4, attribute 5."""
    described = [
        _message(5, _text(1, name) + _number(3, value) + _number(20, INTEGER_ATTRIBUTE))
        for name, value in attributes.items()
    ]
    named = [_text(2, output), _text(3, output), _text(4, operator)]
    return b"".join([*(_text(1, name) for name in inputs), *named, *described])


def _constant(name: str, value: int) -> bytes:
    """TensorProto of one int64: dims 1, data_type 2, int64_data 7, name 8."""
    return _number(1, 1) + _number(2, INT64) + _number(7, value) + _text(8, name)


def _value(name: str, element: int, rank: int) -> bytes:
    """ValueInfoProto: name 1, type 2 {tensor_type 1 {elem_type 1, shape 2 {dim 1, each without a size}}}."""
    shape = b"".join(_message(1, b"") for _ in range(rank))
    return _text(1, name) + _message(2, _message(1, _number(1, element) + _message(2, shape)))


def _number(field: int, value: int) -> bytes:
    return bytes([*_varint(field << 3), *_varint(value)])


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _message(field: int, content: bytes) -> bytes:
    return bytes([*_varint(field << 3 | 2), *_varint(len(content))]) + content


def _varint(value: int) -> Iterator[int]:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    assert value >= 0
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
