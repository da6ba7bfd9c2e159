"""A graph that is being rewritten: who makes a value, who reads it, and new nodes beside the old ones.

Nodes may be added in any order; `finish` drops what nothing reads any more and sorts the rest.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]

CONTRIBUTED: Final = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


class GraphEditor:
    """Rewrites an ONNX graph in place."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self._number = 0
        self._originals: dict[str, str] = {}
        self._renamed: dict[str, str] = {}
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        self._shapes = {
            value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            for value in (*inferred.value_info, *inferred.input, *inferred.output)
            if value.type.tensor_type.HasField("shape")
        }
        self._constants: dict[str, Array] = {}
        self._initializers = {tensor.name: tensor for tensor in self.graph.initializer}
        self._producers = {name: node for node in self.graph.node for name in node.output if name}

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """The nodes as they stand now: safe against additions while walking."""
        return list(self.graph.node)

    def producer(self, value: str) -> onnx.NodeProto | None:
        """The node that makes `value`; None: an input or a constant."""
        return self._producers.get(value)

    def made_by(self, value: str, *operators: str) -> onnx.NodeProto | None:
        """The node that makes `value`, if it is one of these operators."""
        node = self._producers.get(value)
        return node if node is not None and node.op_type in operators else None

    def readers(self, value: str) -> list[onnx.NodeProto]:
        return [node for node in self.graph.node if value in node.input]

    def shape(self, value: str) -> tuple[int, ...]:
        """The shape of a value of the plain graph, or of what replaced it; 0 where a size is not fixed."""
        constant = self.constant(value)
        return self._shapes[self.original(value)] if constant is None else constant.shape

    def size(self, value: str) -> int:
        """The number of features of a value of the plain graph: its last axis."""
        size = self.shape(value)[-1]
        assert size, f"{value} has no last axis of one size"
        return size

    def original(self, value: str) -> str:
        """The value of the plain graph in whose place this one stands; itself if it was there."""
        return self._originals.get(value, value)

    def is_output(self, value: str) -> bool:
        return any(output.name == value for output in self.graph.output)

    def constant(self, value: str) -> Array | None:
        """The values of a constant; None: it is computed or given."""
        if value in self._constants:
            return self._constants[value]
        if value in self._initializers:
            found: Array | None = numpy_helper.to_array(self._initializers[value])
        else:
            found = self._sum_of_constants(value)
        if found is not None:
            self._constants[value] = found
        return found

    def add_constant(self, values: Array | np.generic, name: str) -> str:
        """A new constant; `name` is made unique."""
        name = self._unique(name)
        array = np.asarray(values)
        tensor = numpy_helper.from_array(array, name)
        self.graph.initializer.append(tensor)
        self._initializers[name] = self.graph.initializer[-1]
        self._constants[name] = array
        return name

    def integers(self, *values: int) -> str:
        """A constant [N] int64, as shapes and axes are given."""
        return self.add_constant(np.array(values, np.int64), "integers")

    def add(self, operator: str, inputs: Sequence[str], *, domain: str = "", **attributes: Any) -> str:
        """A new node with one output, whose name is returned."""
        return self.add_many(operator, inputs, 1, domain=domain, **attributes)[0]

    def add_many(
        self, operator: str, inputs: Sequence[str], count: int, *, domain: str = "", **attributes: Any
    ) -> list[str]:
        """A new node with several outputs, whose names are returned."""
        outputs = [self._unique(operator) for _ in range(count)]
        given = [self._renamed.get(name, name) for name in inputs]
        node = helper.make_node(operator, given, outputs, name=outputs[0], domain=domain, **attributes)
        self.graph.node.append(node)
        self._producers |= dict.fromkeys(outputs, self.graph.node[-1])
        return outputs

    def replace(self, old: str, new: str) -> str:
        """Whoever read `old` reads `new` from now on; returns its name, which an output of the graph keeps."""
        if not self.is_output(old):
            self._reroute(old, new)
            self._originals[new] = self.original(old)
            return new
        made = self._producers[new]
        _rename_output(self._producers[old], old, self._unique("replaced"))
        _rename_output(made, new, old)
        self._reroute(new, old)
        self._producers[old] = made
        return old

    def set_input(self, name: str, element: int, shape: Sequence[int | str] | None = None) -> None:
        """Gives an input another element type, and perhaps another shape; whoever reads it is replaced."""
        _declare(self.graph.input, name, element, shape)

    def add_input(self, name: str, element: int, shape: Sequence[int | str]) -> None:
        self.graph.input.append(helper.make_tensor_value_info(name, element, shape))

    def drop_input(self, name: str) -> None:
        self.graph.input.remove(next(value for value in self.graph.input if value.name == name))

    def drop_output(self, name: str) -> None:
        self.graph.output.remove(next(value for value in self.graph.output if value.name == name))

    def set_output(self, name: str, value: str, element: int, shape: Sequence[int | str] | None = None) -> None:
        """Lets the output `name` be another value; whoever reads it in the graph reads what it was."""
        _declare(self.graph.output, name, element, shape)
        former = self._unique(name)
        _rename_output(self._producers[name], name, former)
        self._producers[former] = self._producers[name]
        self._reroute(name, former)
        self._name_output(name, value)

    def add_output(self, name: str, value: str, element: int, shape: Sequence[int | str]) -> None:
        self.graph.output.append(helper.make_tensor_value_info(name, element, shape))
        self._name_output(name, value)

    def finish(self) -> None:
        """Drops what nothing reads and puts every node behind those that it reads from."""
        alive: list[onnx.NodeProto] = []
        placed: set[str] = set()

        def place(value: str) -> None:
            # Depth first, without recursion: a deep stack of layers is a long chain.
            stack = [(value, False)]
            while stack:
                name, ready = stack.pop()
                node = self._producers.get(name)
                if node is None or _identity(node) in placed:
                    continue
                if ready:
                    placed.add(_identity(node))
                    alive.append(node)
                else:
                    stack.append((name, True))
                    stack += [(read, False) for read in reversed(list(_reads(node)))]

        for output in self.graph.output:
            place(output.name)
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in alive]
        read = {name for node in kept for name in _reads(node)}
        del self.graph.node[:]
        self.graph.node.extend(kept)
        for tensor in [one for one in self.graph.initializer if one.name not in read]:
            self.graph.initializer.remove(tensor)

    def _sum_of_constants(self, value: str) -> Array | None:
        """The exporter computes what follows from constants, but not where they are large: a bias of many symbols."""
        node = self.made_by(value, "Add")
        parts = [] if node is None else [self.constant(name) for name in node.input]
        known = [part for part in parts if part is not None]
        return np.asarray(known[0] + known[1]) if len(known) == 2 else None

    def _reroute(self, old: str, new: str) -> None:
        for node in self.graph.node:
            for place, name in enumerate(node.input):
                if name == old:
                    node.input[place] = new

    def _name_output(self, name: str, value: str) -> None:
        """Calls a value what an output is called; what is given, or called so already, gets a node more."""
        value = self._renamed.get(value, value)
        made = self._producers.get(value)
        if made is None or self.is_output(value):
            self.graph.node.append(helper.make_node("Identity", [value], [name], name=name))
            self._producers[name] = self.graph.node[-1]
            return
        _rename_output(made, value, name)
        self._producers[name] = made
        self._originals[name] = self.original(value)
        self._renamed[value] = name
        self._reroute(value, name)

    def _unique(self, name: str) -> str:
        self._number += 1
        return f"int8/{name}_{self._number}"


def _declare(values: Iterable[onnx.ValueInfoProto], name: str, element: int, shape: Sequence[int | str] | None) -> None:
    """Gives a value another element type, and another shape unless it keeps its own."""
    (declared,) = [value for value in values if value.name == name]
    if shape is not None:
        declared.CopyFrom(helper.make_tensor_value_info(name, element, shape))
    declared.type.tensor_type.elem_type = element


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of a node's attribute."""
    return next((helper.get_attribute_value(one) for one in node.attribute if one.name == name), default)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, its bodies included."""
    yield from (name for name in node.input if name)
    for one in node.attribute:
        if one.type == onnx.AttributeProto.GRAPH:
            for inner in one.g.node:
                yield from _reads(inner)


def _identity(node: onnx.NodeProto) -> str:
    """Every value has one producer, so any of its outputs tells a node from all others."""
    return next(name for name in node.output if name)


def _rename_output(node: onnx.NodeProto, old: str, new: str) -> None:
    for place, name in enumerate(node.output):
        if name == old:
            node.output[place] = new
