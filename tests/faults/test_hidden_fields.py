"""Fields that an ONNX file hides.

The tests change a graph field by field: they encode tags, lengths and numbers in ways that parsers read differently,
and repeat, move, group and nest fields. A graph that the reader accepts must mean the same to `onnx`: no unknown or
dropped field, and no operator, tensor or function that the reader would have refused.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
import onnx
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import TensorProto, helper, numpy_helper

from attendant.runtime.bundle.graph_content import OPERATORS, read_graph
from attendant.runtime.bundle.reading import Unfit
from tests.faults.conftest import Figure
from tests.faults.figures import at_least

FEW, MANY = 1_500, 1_000_000

Field = tuple[int, int, Any]
"""A field's number, wire type, and content: a number, bytes, or the fields of a message."""

VARINT, DELIMITED, GROUP = 0, 2, 3
DESCRIPTOR: Final = onnx.ModelProto.DESCRIPTOR


def sound_model() -> onnx.ModelProto:
    """Returns a model with a Scan that sums its input, and with a weight."""
    number = TensorProto.FLOAT
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", "each"], ["after"])],
        "body",
        [helper.make_tensor_value_info(name, number, []) for name in ("sum", "each")],
        [helper.make_tensor_value_info("after", number, [])],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Scan", ["weight", "x"], ["y"], body=body, num_scan_inputs=1),
            helper.make_node("Softmax", ["y"], ["z"], axis=-1),
        ],
        "graph",
        [helper.make_tensor_value_info("x", number, ["N"])],
        [helper.make_tensor_value_info("z", number, [])],
        [numpy_helper.from_array(np.array(3, np.float32), "weight")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def hostile_models() -> Iterator[onnx.ModelProto]:
    """Yields models that the reader must refuse, even if their fields are hidden."""
    model = sound_model()
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="tokens.txt")
    yield model
    model = sound_model()
    model.graph.node[0].op_type = "Loop"
    yield model
    model = sound_model()
    model.functions.add(name="Softmax", domain="").node.add(op_type="If")
    yield model


def fields_of(content: bytes, message: Any) -> list[Field]:
    """Returns the fields of a message that `onnx` has written."""
    fields: list[Field] = []
    place = 0
    while place < len(content):
        tag, place = number_at(content, place)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, place = number_at(content, place)
            fields.append((number, wire, value))
            continue
        size = {1: 8, 5: 4}.get(wire, -1)
        if wire == DELIMITED:
            size, place = number_at(content, place)
        held: Any = content[place : place + size]
        place += size
        field = message.fields_by_number[number]
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            held = fields_of(held, field.message_type)
        fields.append((number, wire, held))
    return fields


def number_at(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


class Harm:
    """Writes fields, some of them in ways that no protobuf library does."""

    def __init__(self, dice: random.Random, share: float) -> None:
        self._dice = dice
        self._share = share

    def written(self, fields: Sequence[Field]) -> bytes:
        fields = list(fields)
        if self._hits() and fields:
            self._rearrange(fields)
        return b"".join(map(self._field, fields))

    def _hits(self) -> bool:
        return self._dice.random() < self._share

    def _rearrange(self, fields: list[Field]) -> None:
        place, other = self._dice.randrange(len(fields)), self._dice.randrange(len(fields))
        number, wire, held = fields[place]
        match self._dice.randrange(6):
            case 0:
                fields.insert(other, fields[place])
            case 1:
                del fields[place]
            case 2:
                fields[place], fields[other] = fields[other], fields[place]
            case 3:
                fields[place] = (self._dice.choice((0, 1, 5, 7, 13, 14, 20, 25, 2**29 - 1, 2**29)), wire, held)
            case 4:
                fields[place] = (number, DELIMITED, [fields[place]])
            case 5:
                fields[place] = (number, self._dice.randrange(8), held)

    def _field(self, field: Field) -> bytes:
        number, wire, held = field
        content = self.written(held) if isinstance(held, list) else held
        tag = number << 3 | wire
        if self._hits():
            tag += self._dice.choice((2**32, 2**35, 7 << 61))
        if self._hits():  # a group around it
            inner = self._number(tag) + self._value(wire, content)
            return self._number(tag & ~7 | GROUP) + inner + self._number(tag & ~7 | GROUP + 1)
        return self._number(tag) + self._value(wire, content)

    def _value(self, wire: int, content: int | bytes) -> bytes:
        if isinstance(content, int):
            more = self._dice.choice((2**32, 2**63)) if self._hits() else 0
            return self._number(content + more)
        if wire != DELIMITED:
            return content
        size = max(0, len(content) + self._dice.choice((-1, 1, 2**32))) if self._hits() else len(content)
        return self._number(size) + content

    def _number(self, value: int) -> bytes:
        """Returns a varint, sometimes longer than necessary, even longer than parsers accept."""
        length = max(1, -(-value.bit_length() // 7))
        if self._hits():
            length += self._dice.choice((1, 2, 5, 9))
        groups = [value >> 7 * place & 0x7F for place in range(length)]
        return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def check_is_as_read(content: bytes) -> None:
    """Checks a graph that the reader accepted: `onnx` sees the same fields, and none that the reader refuses."""
    model = onnx.load_model_from_string(content)
    assert model.ByteSize() == len(content), "a parser drops, merges or shortens something"
    waiting: list[Any] = [model]
    for message in waiting:
        assert not len(UnknownFieldSet(message)) or isinstance(message, onnx.AttributeProto | onnx.TensorProto)
        assert not isinstance(message, onnx.FunctionProto | onnx.TrainingInfoProto | onnx.SparseTensorProto)
        if isinstance(message, onnx.NodeProto):
            assert message.op_type in OPERATORS[message.domain] and message.op_type not in ("Loop", "If")
        if isinstance(message, onnx.TensorProto):
            assert not message.external_data and message.data_location == TensorProto.DEFAULT
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                waiting += value if field.is_repeated else [value]


@pytest.mark.parametrize(
    "num_cases", [FEW, pytest.param(MANY, marks=[pytest.mark.reliability, pytest.mark.timeout(7200)])]
)
def test_all_parsers_read_an_accepted_model_alike(num_cases: int, figure: Figure) -> None:
    originals = [fields_of(model.SerializeToString(), DESCRIPTOR) for model in (sound_model(), *hostile_models())]
    outcomes: Counter[str] = Counter()
    for case in range(num_cases):
        dice = random.Random(case)
        content = Harm(dice, dice.choice((0.0, 0.002, 0.01, 0.05))).written(dice.choice(originals))
        outcome = "refused"
        with suppress(DecodeError, Unfit):
            read_graph(content)
            outcome = "accepted"
        if outcome == "accepted":
            try:
                check_is_as_read(content)
            except DecodeError:
                outcome = "accepted, and none to onnx"  # onnx refuses it later
        outcomes[outcome] += 1
    assert outcomes["refused"] > num_cases // 2 and outcomes["accepted"] > num_cases // 20
    figure("changed graphs, each refused or read by onnx as checked", outcomes.total(), at_least(num_cases), "cases")


def hidden(fields: Sequence[Field]) -> list[Field]:
    """Returns the fields, with 2^32 added to the tags of fields that locate a tensor's values in another file."""
    return [
        (number + 2**29 * (number in (13, 14)), wire, hidden(held) if isinstance(held, list) else held)
        for number, wire, held in fields
    ]


def test_values_with_tags_of_more_than_32_bits_are_refused() -> None:
    """Checks that the reader refuses such tags. ONNX Runtime drops the higher bits and would read the file."""
    fields = hidden(fields_of(next(hostile_models()).SerializeToString(), DESCRIPTOR))
    with pytest.raises(Unfit, match="out of range"):
        read_graph(Harm(random.Random(0), 0.0).written(fields))


def test_harm_with_probability_0_changes_nothing() -> None:
    content = sound_model().SerializeToString()
    assert Harm(random.Random(0), 0.0).written(fields_of(content, DESCRIPTOR)) == content
    read_graph(content)
    check_is_as_read(content)


@pytest.mark.parametrize("model", list(hostile_models()), ids=("values outside", "a loop", "a function"))
def test_hostile_models_are_refused(model: onnx.ModelProto) -> None:
    with pytest.raises(Unfit):
        read_graph(model.SerializeToString())
