"""Watches the steps of a bundle's graph, for `attendant.inspect`: values within the graph become outputs.

Names within a graph are the exporter's, so a value is recognized by the nodes that compute it. The search starts from
the inputs and outputs, whose names are the same in every graph.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from attendant.runtime.bundle import graph_io
from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.graph_content import Graph, Node, read_graph
from attendant.runtime.bundle.manifest import GraphSpec, Precision
from attendant.runtime.inspection import OF_POSITIONS, Record
from attendant.runtime.onnx.session import OnnxSession, Shape, graph_bytes
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import Array

LSTM_GATES: Final = (("input", "Sigmoid"), ("forget", "Sigmoid"), ("candidate", "Tanh"), ("output", "Sigmoid"))
"""In torch's order, with their functions."""

MAX_WAY: Final = 12  # The most nodes between two that belong together: casts, scales and changes of shape.


def watched(bundle: Bundle, precision: Precision, record: Record) -> OnnxStepper:
    """Returns a stepper that writes the quantities of its first row's steps into the record. Raises as OnnxStepper."""
    if not bundle.manifest.has_our_layers:
        # A user's own module may compute anything: only the outputs of every stepper are known.
        return OnnxStepper(bundle, precision)
    step = bundle.graphs_in(precision).decoder_step
    graph = read_graph(graph_bytes(bundle.path, step))

    def open_session(folder: Path, spec: GraphSpec, **how: Any) -> OnnxSession:
        return _WatchedSession(folder, spec, graph, record, **how) if spec == step else OnnxSession(folder, spec, **how)

    return OnnxStepper(bundle, precision, open_session=open_session)


class _WatchedSession(OnnxSession):
    """A step graph whose inner values are outputs, too."""

    def __init__(self, folder: Path, spec: GraphSpec, graph: Graph, record: Record, **how: Any) -> None:
        self._record = record
        self._values = inner_values(graph)
        own = {output.name for output in spec.outputs}
        self._names = sorted({name for names in self._values.values() for name in names})
        super().__init__(folder, spec, exposed=[name for name in self._names if name not in own], **how)

    def run(
        self, outputs: Sequence[str] | Mapping[str, Shape], inputs: Mapping[str, Array], *, in_place: bool = False
    ) -> list[Array]:
        """Runs the graph, as OnnxSession does, and records the inner values."""
        names = list(outputs)
        names += [name for name in self._names if name not in names]
        results = super().run(names, inputs)
        values = dict(zip(names, results, strict=True))
        for name, of_layers in self._values.items():
            arrays = [_of_first_row(name, values[each]) for each in of_layers]
            if all(array.dtype.kind == "f" for array in arrays):
                is_by_layer = name.startswith(OF_LAYERS) and arrays[0].ndim == 1
                self._record[name] = np.stack(arrays) if is_by_layer else arrays[0]
        for name, source in (("memory", "memory"), ("keys", "keys" if "keys" in inputs else "memory")):
            if source in inputs and inputs[source].dtype.kind == "f":
                self._record[name] = inputs[source][0]
        return results[: len(outputs)]


OF_LAYERS: Final = ("hidden", "cell", "gates.")  # The beginnings of the names of quantities that each layer has.


def _of_first_row(name: str, value: Array) -> Array:
    """Returns the part of a value that belongs to the first row of the first source."""
    if name == "p_gen":
        return np.asarray(1 / (1 + np.exp(-value[0, 0])))
    first: Array = value[0, 0] if name in OF_POSITIONS else value[0]
    return first


def inner_values(graph: Graph) -> dict[str, list[str]]:
    """Returns the names of the values in a step graph by the quantities that they are; a name for each layer.

    `scores` and `weights` are [B, M, S], the others [R, ...]; `p_gen` is the logit of the probability. States are those
    that a step returns, of all layers, if the layers are not found. Quantities that are not found are absent.
    """
    values: dict[str, list[str]] = {}
    if (softmax := _first_before(graph, graph_io.ATTENTION, "Softmax")) is not None:
        values["weights"] = softmax.outputs[:1]
        if (where := _first_before(graph, softmax.inputs[0], "Where")) is not None:
            values["scores"] = [where.inputs[1]]
        values["query"], values["context"] = _query(graph), _context(graph, softmax)
    for layer in [*_lstm_layers(graph), *_gru_layers(graph)]:
        for name, value in layer.items():
            values.setdefault(name, []).append(value)
    for node in graph.nodes:
        maker = graph.maker(node.inputs[0]) if node.operator == "Sub" else None
        if maker is not None and maker.operator in ("Log", "ReduceLogSum"):
            values["p_gen"] = [node.inputs[1]]
    for name in ("hidden", "cell"):
        if name not in values and graph.maker(f"{name}_out") is not None:
            values[name] = [f"{name}_out"]
    return {name: names for name, names in values.items() if names}


def _first_before(graph: Graph, name: str, operator: str) -> Node | None:
    """Returns the nearest node of an operator on the way to a value, along first inputs."""
    for _ in range(MAX_WAY):
        node = graph.maker(name)
        if node is None or node.operator == operator:
            return node
        name = node.inputs[0]
    return None


def _query(graph: Graph) -> list[str]:
    """Returns the value that `source_rows` gathers, except state tensors of the source's width, such as coverage."""
    for node in graph.nodes:
        if node.operator == "Gather" and node.inputs[0] not in graph.bounds:
            index = graph.maker(node.inputs[1])
            if graph_io.SOURCE_ROWS in (node.inputs[1], None if index is None else index.inputs[0]):
                return node.inputs[:1]
    return []


def _context(graph: Graph, softmax: Node) -> list[str]:
    """Returns the product of the weights and the memory, scaled to real numbers, [B * M, C]."""
    for node in graph.nodes:
        if node.operator not in ("MatMul", "MatMulInteger") or node.inputs[1] != "memory":
            continue
        if _first_before(graph, node.inputs[0], "Softmax") is softmax:
            value = node.outputs[0]
            for _ in range(MAX_WAY):
                user = next(iter(graph.users(value)), None)
                if user is None:
                    return []
                value = user.outputs[0]
                if user.operator == "Reshape":
                    return [value]
    return []


def _user(graph: Graph, name: str, operator: str) -> Node | None:
    return next((node for node in graph.users(name) if node.operator == operator), None)


def _lstm_layers(graph: Graph) -> Iterator[dict[str, str]]:
    """Yields gates, cell and hidden state of each LSTM layer: c' = f c + i g; h' = o tanh(c')."""
    for split in graph.nodes:
        if split.operator != "Split" or len(split.outputs) != len(LSTM_GATES):
            continue
        gates = {
            name: node.outputs[0]
            for (name, operator), part in zip(LSTM_GATES, split.outputs, strict=True)
            if (node := _user(graph, part, operator)) is not None
        }
        if len(gates) < len(LSTM_GATES):
            continue
        new = _user(graph, gates["candidate"], "Mul")
        cell = None if new is None else _user(graph, new.outputs[0], "Add")
        hidden = _user(graph, gates["output"], "Mul")
        if cell is not None and hidden is not None:
            named = {f"gates.{name}": value for name, value in gates.items()}
            yield {**named, "cell": cell.outputs[0], "hidden": hidden.outputs[0]}


def _gru_layers(graph: Graph) -> Iterator[dict[str, str]]:
    """Yields gates and hidden state of each GRU layer: n = tanh(a + r b); h' = n + z (h - n)."""
    for node in graph.nodes:
        inner = graph.maker(node.inputs[0]) if node.operator == "Tanh" else None
        if inner is None or inner.operator != "Add":
            continue
        parts = [graph.maker(name) for name in inner.inputs]
        if [part.operator if part is not None else "" for part in parts] != ["Split", "Mul"]:
            continue
        split, product = parts
        assert split is not None and product is not None
        reset = product.inputs[0]
        update = next(
            (
                sigmoid.outputs[0]
                for add in graph.users(split.outputs[1])
                for sigmoid in graph.users(add.outputs[0])
                if sigmoid.operator == "Sigmoid"
            ),
            None,
        )
        scaled = None if update is None else _user(graph, update, "Mul")
        hidden = None if scaled is None else _user(graph, scaled.outputs[0], "Add")
        if update is not None and hidden is not None:
            yield {
                "gates.reset": reset,
                "gates.update": update,
                "gates.candidate": node.outputs[0],
                "hidden": hidden.outputs[0],
            }
