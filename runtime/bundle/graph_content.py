"""What an ONNX file holds, as far as it may harm whoever loads it: read off protobuf's wire format.

The server has no `onnx`, and a message class of our own would copy the weights. Only four things are looked for:
tensors whose values lie in other files, operators that ONNX Runtime does not have by itself, loops without an end, and
files that are no ONNX at all. Everything else is ONNX Runtime's affair, and the golden examples'.
"""

import os
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Final

from attendant.runtime.bundle.reading import Unfit

DOMAINS: Final = frozenset(("", "ai.onnx", "com.microsoft"))
"""Of operators: ONNX's own, and those that ONNX Runtime brings along."""

ENDLESS: Final = frozenset(("Loop",))
"""A Scan ends with its input; a Loop when it likes to. No export writes one."""

MAX_NESTED: Final = 32
MAX_NAME: Final = 256
MAX_FIELDS: Final = 1_000_000
"""Read in about a second. A graph of ours has some thousands."""

MAX_VARINT: Final = 10
"""Bytes of a number."""

# message -> field -> the message that stands in it (onnx.proto)
_WITHIN: Final[Mapping[str, Mapping[int, str]]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_OP_TYPE, _DOMAIN = 4, 7
_TENSOR_NAME, _EXTERNAL_DATA, _DATA_LOCATION = 8, 13, 14
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


def unfit_parts(file: BinaryIO) -> list[str]:
    """What of a graph's file must not be loaded, one line each; without the file's name. Weights are skipped.

    Raises:
        Unfit: it is no ONNX model.
    """
    num_fields, lines, messages = 0, list[str](), set[str]()
    waiting = [("model", 0, file.seek(0, os.SEEK_END), 0)]
    while waiting:
        message, begin, end, depth = waiting.pop()
        messages.add(message)
        if depth > MAX_NESTED:
            raise Unfit(f"graphs are nested deeper than {MAX_NESTED}")
        texts: dict[int, str] = {}
        is_outside = False
        for number, wire, value, size in _fields(file, begin, end):
            num_fields += 1
            if num_fields > MAX_FIELDS:
                raise Unfit(f"more than {MAX_FIELDS} fields: no export writes such a graph")
            if wire == _DELIMITED and number in _WITHIN[message]:
                waiting.append((_WITHIN[message][number], value, value + size, depth + 1))
            elif wire == _DELIMITED and number in (_OP_TYPE, _DOMAIN, _TENSOR_NAME):
                file.seek(value)
                # A longer name is none that is looked for.
                texts[number] = file.read(min(size, MAX_NAME)).decode(errors="replace")
            # The location is a number: 0 where the values stand in the tensor.
            is_outside |= number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value != 0)
        if message == "tensor" and is_outside:
            lines.append(f"the values of the tensor {texts.get(_TENSOR_NAME, '')!r} lie in another file")
        if message == "node":
            lines += _unfit_operator(texts.get(_OP_TYPE, ""), texts.get(_DOMAIN, ""))
    if "graph" not in messages:
        raise Unfit("no ONNX model")
    return list(dict.fromkeys(lines))


def _unfit_operator(name: str, domain: str) -> Iterator[str]:
    if domain not in DOMAINS:
        yield f"the operator {name!r} is of {domain!r}: ONNX Runtime does not have it by itself"
    elif name in ENDLESS:
        yield f"the operator {name!r} need not end, and no export writes it"


def _fields(file: BinaryIO, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, wire type, value or where it begins, its size) of each field.

    Raises:
        Unfit: it is no protobuf message.
    """
    while position < end:
        file.seek(position)
        key, position = _varint(file, position, end)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, position = _varint(file, position, end)
            yield number, wire, value, 0
            continue
        if wire == _DELIMITED:
            size, position = _varint(file, position, end)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise Unfit("no ONNX model")
        if size > end - position:
            raise Unfit("no ONNX model: it is cut off")
        yield number, wire, position, size
        position += size


def _varint(file: BinaryIO, position: int, end: int) -> tuple[int, int]:
    """The number that begins here, and where the next field does."""
    value = 0
    for length, byte in enumerate(file.read(min(MAX_VARINT, end - position)), 1):
        value |= (byte & 0x7F) << 7 * (length - 1)
        if byte < 0x80:
            file.seek(position + length)
            return value, position + length
    raise Unfit("no ONNX model")
