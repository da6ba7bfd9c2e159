"""A graph that is being rewritten: new nodes beside the old ones, and who reads which.

It is `onnx_ir`'s graph: a value knows the node that makes it and those that read it, whatever it is called. Nodes may
be added in any order; `finished` drops what nothing reads any more and sorts the rest.
"""

import itertools
from collections.abc import MutableSequence, Sequence
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import TopologicalSortPass

from attendant.export.tracing.traced import TracedGraph

Array = NDArray[Any]

CONTRIBUTED: Final = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


def constant(value: ir.Value | None) -> Array | None:
    """The values of a constant, in its shape and dtype; None: it is computed, given or left out."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    # The exporter computes what follows from constants, but not where they are large: a bias of many symbols.
    node = made_by(value, "Add")
    parts = [] if node is None else [constant(one) for one in node.inputs]
    known = [part for part in parts if part is not None]
    return np.asarray(known[0] + known[1]) if len(known) == 2 else None


def made_by(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """The node that makes `value`, if it is one of these operators."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in operators else None


def operand(node: ir.Node, place: int = 0) -> ir.Value:
    """What a node reads at that place; no operand that is left out is asked for."""
    value = node.inputs[place]
    assert value is not None, f"{node.op_type} has its operand {place}"
    return value


def given(node: ir.Node) -> list[ir.Value]:
    """What a node reads, without the inputs that are left out."""
    return [value for value in node.inputs if value is not None]


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """The shape of a value of the plain graph, or of what replaced it; 0 where a size is not fixed."""
    assert value.shape is not None, f"{value.name} has no shape"
    return tuple(size if isinstance(size, int) else 0 for size in value.shape)


def size_of(value: ir.Value) -> int:
    """The number of features of a value of the plain graph: its last axis."""
    size = shape_of(value)[-1]
    assert size, f"{value.name} has no last axis of one size"
    return size


def keeps_last_axis(node: ir.Node) -> bool:
    """Whether a node is a Transpose that leaves the features, the last axis, where they are."""
    order = node.attributes.get_ints("perm", ()) if node.op_type == "Transpose" else ()
    return bool(order) and order[-1] == len(order) - 1


class GraphBuilder:
    """Adds nodes and constants to a graph; their names begin with `prefix`."""

    def __init__(self, graph: ir.Graph, prefix: str) -> None:
        self.graph = graph
        self._prefix = prefix
        self._numbers = itertools.count(1)

    def add(self, operator: str, inputs: Sequence[ir.Value | None], *, domain: str = "", **attributes: Any) -> ir.Value:
        """A new node with one output, which is returned."""
        return self.add_many(operator, inputs, 1, domain=domain, **attributes)[0]

    def add_many(
        self, operator: str, inputs: Sequence[ir.Value | None], count: int, *, domain: str = "", **attributes: Any
    ) -> list[ir.Value]:
        """A new node with several outputs, which are returned."""
        outputs = [ir.Value(name=self.unique(operator)) for _ in range(count)]
        self.graph.append(ir.node(operator, inputs, attributes, domain=domain, outputs=outputs, name=outputs[0].name))
        return outputs

    def multiply_integers(
        self,
        codes: ir.Value,
        matrix: ir.Value,
        codes_scale: ir.Value,
        matrix_scale: ir.Value,
        codes_zero: ir.Value,
        bias: ir.Value | None = None,
    ) -> ir.Value:
        """codes_scale * matrix_scale * (codes - codes_zero) matrix + bias, float32 [..., N]: a node of ONNX Runtime's.

        Args:
            codes: [..., K] uint8; codes_zero: [] uint8.
            matrix: [K, N] int8, or [B, K, N].
            codes_scale: [] float32; matrix_scale: [] or [N] float32.
            bias: [N] float32; None: there is none.
        """
        last = [] if bias is None else [None, bias]
        inputs = [codes, matrix, codes_scale, matrix_scale, codes_zero, *last]
        return self.add("MatMulIntegerToFloat", inputs, domain=CONTRIBUTED)

    def add_constant(self, values: Array | np.generic, name: str) -> ir.Value:
        """A new constant of the shape and dtype of `values`; `name` is made unique."""
        name = self.unique(name)
        value = ir.val(name, const_value=ir.tensor(np.asarray(values), name=name))
        self.graph.register_initializer(value)
        return value

    def integers(self, *values: int) -> ir.Value:
        """A constant [N] int64, as shapes and axes are given."""
        return self.add_constant(np.array(values, np.int64), "integers")

    def unique(self, name: str) -> str:
        """A name that nothing else in the graph has."""
        return f"{self._prefix}/{name}_{next(self._numbers)}"


class GraphEditor(GraphBuilder):
    """Rewrites a copy of an ONNX graph."""

    def __init__(self, plain: onnx.ModelProto, prefix: str) -> None:
        self._model = ir.from_proto(onnx.shape_inference.infer_shapes(plain, data_prop=True))
        self._originals: dict[ir.Value, ir.Value] = {}
        super().__init__(self._model.graph, prefix)

    def input(self, name: str) -> ir.Value:
        return next(value for value in self.graph.inputs if value.name == name)

    def output(self, name: str) -> ir.Value:
        return next(value for value in self.graph.outputs if value.name == name)

    def original(self, value: ir.Value) -> ir.Value:
        """The value of the plain graph in whose place this one stands; itself if it was there."""
        return self._originals.get(value, value)

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Whoever read `old` reads `new` from now on, the graph's output of that name included."""
        self._originals[new] = self.original(old)
        if new.type is None:
            new.type, new.shape = old.type, old.shape
        if old.is_graph_output():
            old.name, new.name = self.unique("replaced"), old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)

    def add_input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
        """A new input, in the place of the former one of that name, which nothing may read in the end."""
        value = ir.val(name, dtype, shape)
        _put(self.graph.inputs, name, value)
        return value

    def add_output(self, name: str, value: ir.Value, dtype: ir.DataType, shape: Sequence[int | str]) -> None:
        """Gives `value` out under that name, in the place of the former output of that name."""
        if value.producer() is None or value.is_graph_output():
            value = self.add("Identity", [value])
        former = _put(self.graph.outputs, name, value)
        if former is not None:
            former.name = self.unique(name)
        value.name, value.type, value.shape = name, ir.TensorType(dtype), ir.Shape(shape)

    def finished(self) -> TracedGraph:
        """The rewritten graph, without what nothing reads, every node behind those that it reads from."""
        if any(node.domain == CONTRIBUTED for node in self.graph.all_nodes()):
            self.graph.opset_imports[CONTRIBUTED] = 1
        # What is unused is seen from the end: in any other order some of it would be left.
        TopologicalSortPass()(self._model)
        return TracedGraph.of(self._model)


def _put(values: MutableSequence[ir.Value], name: str, value: ir.Value) -> ir.Value | None:
    """Puts an input or output where there was one of that name, which is returned, or behind the others."""
    for place, former in enumerate(values):
        if former.name == name:
            values[place] = value
            return former
    values.append(value)
    return None
