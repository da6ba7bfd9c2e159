"""Graphs of a bundle: finished ones, as the manifest describes them, and one that is being rewritten.

A graph that is being rewritten is `onnx_ir`'s: a value refers to the node that makes it and to those that read it.
Nodes may be added in any order; `GraphEditor.finished` removes unused nodes and sorts the rest.
"""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import ClearMetadataAndDocStringPass, RemoveUnusedNodesPass, TopologicalSortPass

from attendant.runtime.bundle.manifest import GraphPair, GraphSpec, Precision, StateTensor, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedGraph:
    """A finished graph, with its inputs and outputs as the manifest names them."""

    model: onnx.ModelProto
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, model: ir.Model) -> "TracedGraph":
        """Returns the graph for writing, without unused nodes and inferred shapes. `model` is changed."""
        RemoveUnusedNodesPass()(model)
        ClearMetadataAndDocStringPass()(model)
        proto = ir.to_proto(model)
        # Inferred shapes have the example's sizes, about which the runtime would warn, or belong to replaced values.
        del proto.graph.value_info[:]
        # The passes leave these.
        del proto.metadata_props[:]
        for graph in with_bodies(proto.graph):
            for part in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
                part.ClearField("doc_string")
                part.ClearField("metadata_props")
        onnx.checker.check_model(proto)
        inputs, outputs = (tuple(map(_spec, values)) for values in (model.graph.inputs, model.graph.outputs))
        return cls(model=proto, opset=model.opset_imports[""], inputs=inputs, outputs=outputs)

    def to_bytes(self) -> bytes:
        """Returns the same bytes for the same weights."""
        return self.model.SerializeToString(deterministic=True)

    def write(self, folder: Path, file: str) -> GraphSpec:
        """Writes the graph to `folder / file`; returns its entry in the manifest."""
        content = self.to_bytes()
        (folder / file).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        return GraphSpec(file=file, sha256=digest, opset=self.opset, inputs=self.inputs, outputs=self.outputs)


def with_bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yields a graph and the bodies of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from with_bodies(attribute.g)


def _spec(value: ir.Value) -> TensorSpec:
    assert value.name is not None and value.dtype is not None and value.shape is not None
    shape = tuple(size if isinstance(size, int) else str(size.value) for size in value.shape)
    return TensorSpec(name=value.name, dtype=str(value.dtype.numpy()), shape=shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPair:
    """The two graphs of one precision, and the tensors that pass between them; see GraphPair of the manifest.

    Attributes:
        arithmetic: of int8 and fp16: matrix, tensor or operation -> how it is computed or stored, and why.
    """

    encoder: TracedGraph
    decoder_step: TracedGraph
    state: tuple[StateTensor, ...]
    min_queries: int
    arithmetic: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path, precision: Precision) -> GraphPair:
        """Writes both graphs into `folder / precision`, a new folder; returns their entry in the manifest."""
        (folder / precision).mkdir()
        return GraphPair(
            encoder=self.encoder.write(folder, f"{precision}/encoder.onnx"),
            decoder_step=self.decoder_step.write(folder, f"{precision}/decoder_step.onnx"),
            state=self.state,
            min_queries=self.min_queries,
        )


Array = NDArray[Any]

CONTRIBUTED: Final = "com.microsoft"  # The domain of ONNX Runtime's own operators.
RECURRENT: Final = frozenset({"LSTM", "GRU", "RNN"})


def constant(value: ir.Value | None) -> Array | None:
    """Returns the values of a constant; None if the value is computed, an input or left out."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    # The exporter folds constants, except large ones: a bias of many symbols.
    node = made_by(value, "Add")
    parts = [] if node is None else [constant(part) for part in node.inputs]
    known = [part for part in parts if part is not None]
    return np.asarray(known[0] + known[1]) if len(known) == 2 else None


def made_by(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """Returns the node that makes `value`, if it is one of these operators."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in operators else None


def operand(node: ir.Node, place: int = 0) -> ir.Value:
    """Returns the input of a node at that place, which must not be left out."""
    value = node.inputs[place]
    assert value is not None, f"{node.op_type} has its operand {place}"
    return value


def inputs_of(node: ir.Node) -> list[ir.Value]:
    """Returns the inputs of a node, without those that are left out."""
    return [value for value in node.inputs if value is not None]


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Returns the shape of a value, with 0 for sizes that are not fixed."""
    assert value.shape is not None, f"{value.name} has no shape"
    return tuple(size if isinstance(size, int) else 0 for size in value.shape)


def size_of(value: ir.Value) -> int:
    """Returns the number of features of a value: the size of its last axis."""
    size = shape_of(value)[-1]
    assert size, f"{value.name} has no last axis of one size"
    return size


def has_size(value: ir.Value) -> bool:
    """Returns True if `size_of` can be called: the size of the last axis is fixed."""
    return bool(value.shape) and bool(shape_of(value)[-1])


def keeps_last_axis(node: ir.Node) -> bool:
    """Returns True if a node is a Transpose that keeps the last axis, the features."""
    order = node.attributes.get_ints("perm", ()) if node.op_type == "Transpose" else ()
    return bool(order) and order[-1] == len(order) - 1


class GraphBuilder:
    """Adds nodes and constants to a graph; their names begin with `prefix`."""

    def __init__(self, graph: ir.Graph, prefix: str) -> None:
        self.graph = graph
        self._prefix = prefix
        self._numbers = itertools.count(1)

    def add(self, operator: str, inputs: Sequence[ir.Value | None], *, domain: str = "", **attributes: Any) -> ir.Value:
        """Adds a node with one output, which is returned."""
        return self.add_many(operator, inputs, 1, domain=domain, **attributes)[0]

    def add_many(
        self, operator: str, inputs: Sequence[ir.Value | None], count: int, *, domain: str = "", **attributes: Any
    ) -> list[ir.Value]:
        """Adds a node with several outputs, which are returned."""
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
        """Adds codes_scale * matrix_scale * (codes - codes_zero) matrix + bias, float32 [..., N], in one node.

        codes [..., K] and codes_zero [] uint8, matrix [(B,) K, N] int8, matrix_scale [] or [N], bias [N] float32.
        """
        last = [] if bias is None else [None, bias]
        inputs = [codes, matrix, codes_scale, matrix_scale, codes_zero, *last]
        return self.add("MatMulIntegerToFloat", inputs, domain=CONTRIBUTED)

    def add_constant(self, values: Array | np.generic, name: str) -> ir.Value:
        """Adds a constant; `name` is made unique."""
        name = self.unique(name)
        value = ir.val(name, const_value=ir.tensor(np.asarray(values), name=name))
        self.graph.register_initializer(value)
        return value

    def integers(self, *values: int) -> ir.Value:
        """Adds a constant [N] int64, for shapes and axes."""
        return self.add_constant(np.array(values, np.int64), "integers")

    def unique(self, name: str) -> str:
        """Returns a new name."""
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
        """Returns the value of the original graph that this one replaced; itself if it replaced none."""
        return self._originals.get(value, value)

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Redirects all uses of `old` to `new`, also as an output of the graph."""
        self._originals[new] = self.original(old)
        if new.type is None:
            new.type, new.shape = old.type, old.shape
        if old.is_graph_output():
            old.name, new.name = self.unique("replaced"), old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)

    def add_input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
        """Adds an input, or replaces that of this name, which must be unused in the end."""
        value = ir.val(name, dtype, shape)
        _put(self.graph.inputs, name, value)
        return value

    def add_output(self, name: str, value: ir.Value, dtype: ir.DataType, shape: Sequence[int | str]) -> None:
        """Makes `value` an output, or replaces the output of this name."""
        if value.producer() is None or value.is_graph_output():
            value = self.add("Identity", [value])
        former = _put(self.graph.outputs, name, value)
        if former is not None:
            former.name = self.unique(name)
        value.name, value.type, value.shape = name, ir.TensorType(dtype), ir.Shape(shape)

    def finished(self) -> TracedGraph:
        """Returns the rewritten graph, sorted and without unused nodes."""
        if any(node.domain == CONTRIBUTED for node in self.graph.all_nodes()):
            self.graph.opset_imports[CONTRIBUTED] = 1
        # Unused nodes are removed from the end, so the order matters.
        TopologicalSortPass()(self._model)
        return TracedGraph.of(self._model)


def _put(values: MutableSequence[ir.Value], name: str, value: ir.Value) -> ir.Value | None:
    """Replaces the input or output of that name, which is returned, or appends it."""
    for place, former in enumerate(values):
        if former.name == name:
            values[place] = value
            return former
    values.append(value)
    return None
