"""Proves from an int8 bundle's graphs that its products of integers are exact on every processor.

ONNX Runtime multiplies activations a (uint8) by factors b (int8). On x86 processors without VNNI its kernels add two
neighbouring products in signed 16 bits and cut off what is beyond. That never happens if every factor is at most 64:

    |a1 b1 + a2 b2| <= 255 (|b1| + |b2|) <= 255 * 128 = 32,640 <= 32,767

Activations count with all of their 255: kernels multiply the bytes as they are and subtract zero points afterwards.
Factors are constants, or tensors of the state (keys and memory) whose codes the encoder clips.

The graphs are read from protobuf's wire format, as in graph_content.py, because servers don't have the package `onnx`.
What that file accepts has no other products of integers than those of FACTORS.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from attendant.runtime.bundle.graph_content import DELIMITED, check_graph, fields
from attendant.runtime.bundle.manifest import GraphPair, StateTensor
from attendant.runtime.bundle.reading import MAX_GRAPH_BYTES, read_file

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
