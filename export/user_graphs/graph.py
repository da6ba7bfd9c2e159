"""A user's ONNX graph: read from its file, run as it is, and converted to the operators that bundles may contain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir
import onnxscript.optimizer
from google.protobuf.message import DecodeError
from onnx import inliner, version_converter

from attendant.export.graph import CONTRIBUTED, RECURRENT, GraphBuilder, operand, shape_of, with_bodies
from attendant.runtime.bundle.graph_content import OPERATORS
from attendant.runtime.bundle.reading import MAX_GRAPH_BYTES
from attendant.runtime.errors import UserError, reason_of
from attendant.runtime.files import reading_error, sha256_of
from attendant.runtime.onnx.session import PlainSession
from attendant.runtime.process import available_cpus
from attendant.training.model.readout import IMPOSSIBLE

MASK: Final = "attendant_source_mask"  # Name of the input that `masked` adds.


@dataclass(frozen=True, slots=True)
class Declared:
    """An input or output as its graph declares it; a size that is not fixed is its name, or an empty text."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype}[{', '.join(str(size or '?') for size in self.shape)}]"


class UserGraph:
    """A graph in a file.

    Attributes:
        file: the file as it was named, for messages: both graphs may be a `model.onnx`.
        inputs, outputs: by name; the inputs without those that are constants or that nothing reads.
        is_quantized: True if the graph quantizes activations at run time. All rows of a batch then share one scale.
        session: runs the file's graph.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file, and the files that hold its weights. Raises UserError: it can't be read, or onnxruntime can't
        run it.
        """
        self.path, self.file = path, str(path)
        try:
            self.proto = onnx.load(path)
        except OSError as error:
            raise UserError(f"{path}: can't be read: {reading_error(error)}") from None
        except (DecodeError, onnx.checker.ValidationError, ValueError) as error:
            raise UserError(f"{path}: no ONNX model, or damaged: {reason_of(error)}") from None
        if self.proto.ByteSize() >= MAX_GRAPH_BYTES:
            raise UserError(f"{path}: has {self.proto.ByteSize() / 1e9:.1f} GB, and a graph must have less than 2.1 GB")
        # A bundle's weights are in its graphs, and it has no field for another place.
        for tensor in _tensors(self.proto.graph):
            tensor.ClearField("data_location")
        nodes = [node for graph in with_bodies(self.proto.graph) for node in graph.node]
        read = {name for node in nodes for name in node.input} | {value.name for value in self.proto.graph.output}
        _keep(self.proto.graph.input, [value.name for value in self.proto.graph.input if value.name in read])
        self.is_quantized = any(node.op_type.startswith("DynamicQuantize") for node in nodes)
        constants = {tensor.name for tensor in self.proto.graph.initializer}
        self.inputs = self._declared([value for value in self.proto.graph.input if value.name not in constants])
        self.outputs = self._declared(self.proto.graph.output)
        self.session = PlainSession(self.file, self.proto.SerializeToString(), available_cpus())

    @property
    def opset(self) -> int:
        """Version of ONNX's operators."""
        return next((entry.version for entry in self.proto.opset_import if entry.domain in ("", "ai.onnx")), 1)

    @property
    def origin(self) -> Mapping[str, Any]:
        """A description for the bundle's provenance."""
        producer = f"{self.proto.producer_name} {self.proto.producer_version}".strip()
        return {"file": self.path.name, "sha256": sha256_of(self.path), "opset": self.opset, "producer": producer}

    @property
    def num_parameters(self) -> int:
        """Number of floating-point weights."""
        sizes = (tensor.dims for tensor in self.proto.graph.initializer if tensor.data_type in _FLOATS)
        return sum(int(np.prod(dims)) for dims in sizes)

    @cached_property
    def in_float64(self) -> PlainSession:
        """The same graph in float64, except recurrent layers, which onnxruntime has in float32 only. Raises UserError:
        onnxruntime lacks an operator in float64.
        """
        return PlainSession(self.file, _widened(self.proto).SerializeToString(), available_cpus())

    def _declared(self, values: Sequence[onnx.ValueInfoProto]) -> dict[str, Declared]:
        declared = {}
        for value in values:
            kind = value.type.tensor_type
            if not value.type.HasField("tensor_type") or kind.elem_type not in _DTYPES:
                actual = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
                raise UserError(
                    f"{self.file}: {value.name!r} has the type {actual}: export the graph with inputs and outputs of "
                    f"{', '.join(_DTYPES.values())}"
                )
            if not kind.HasField("shape"):
                raise UserError(f"{self.file}: {value.name!r} has no shape: export the graph with shapes of its inputs")
            shape = tuple(
                size.dim_value if size.HasField("dim_value") and size.dim_value > 0 else size.dim_param
                for size in kind.shape.dim
            )
            declared[value.name] = Declared(value.name, _DTYPES[kind.elem_type], shape)
        return declared

    def onnx_model(self, opset: int, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
        """Returns the graph with these inputs and outputs, in their order, in this version of the operators. Raises
        UserError: it can't be converted, or has an operator that bundles may not contain.
        """
        proto = inliner.inline_local_functions(self.proto)
        # Versions before 4 list constants among the inputs.
        _keep(proto.graph.input, inputs)
        _keep(proto.graph.output, outputs)
        try:
            if self.opset != opset:
                proto = version_converter.convert_version(proto, opset)
            proto = onnxscript.optimizer.optimize(proto)
        except Exception as error:  # the converters have no errors of their own
            raise UserError(
                f"{self.file}: has opset {self.opset}, and can't be converted to {opset}: {reason_of(error)}; export "
                f"it with opset_version={opset}"
            ) from None
        model = ir.from_proto(proto)
        for node in model.graph.all_nodes():
            if node.op_type not in OPERATORS.get(node.domain, ()) or node.domain:
                other = OPTIMIZED if node.domain == CONTRIBUTED else "export it by other operators of ONNX"
                raise UserError(
                    f"{self.file}: contains {node.op_type} of {node.domain or 'ai.onnx'} (node {node.name!r}), which "
                    f"bundles may not contain: {_REMEDIES.get(node.op_type, other)}"
                )
        model.producer_name = ""
        return ir.to_proto(model)

    def __deepcopy__(self, memo: Any) -> "UserGraph":
        return self  # a session can't be copied, and nothing changes here


def softmax_inputs(model: onnx.ModelProto) -> list[str]:
    """Returns the names of the values of a graph that are normalized by a Softmax."""
    return list(dict.fromkeys(node.input[0] for node in model.graph.node if node.op_type == "Softmax"))


def masked(model: onnx.ModelProto, places: Mapping[str, tuple[int | None, int]], rank: int) -> onnx.ModelProto:
    """Returns a graph with a mask as another input, by which its softmaxes leave out padding.

    Args:
        places: the name of a normalized value -> its axis of rows, None if it has none, and its axis of positions.
        rank: of the mask: 2 for [R, S], or 1 for [S] if the graph takes one row.
    """
    edited = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    builder = GraphBuilder(edited.graph, "mask")
    mask = ir.val(MASK, ir.DataType.BOOL, ("R", "S")[-rank:])
    edited.graph.inputs.append(mask)
    floor = builder.add_constant(np.float32(IMPOSSIBLE), "impossible")
    for node in [node for node in edited.graph if node.op_type == "Softmax"]:
        scores = operand(node)
        axes = places.get(scores.name or "")
        if axes is None:
            continue
        row, position = axes
        own = mask
        if row is not None and row > position:
            own = builder.add("Transpose", [own], perm=[1, 0])
        dimensions = len(shape_of(node.outputs[0]))
        others = [axis for axis in range(dimensions) if axis not in (row, position)]
        if others:
            own = builder.add("Unsqueeze", [own, builder.integers(*others)])
        node.replace_input_with(0, builder.add("Where", [own, scores, floor]))
    edited.graph.sort()
    return ir.to_proto(edited)


def with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Returns a graph that outputs these of its values, and nothing else."""
    edited = onnx.ModelProto()
    edited.CopyFrom(model)
    del edited.graph.output[:]
    edited.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names))
    return edited


_DTYPES: Final[Mapping[int, str]] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.INT64: "int64",
    onnx.TensorProto.BOOL: "bool",
}
_FLOATS: Final = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)

OPTIMIZED: Final = "give the graph as it was before ONNX Runtime's tools optimized or quantized it"
"""The remedy for a graph that was changed after its export."""

_REMEDIES: Final[Mapping[str, str]] = {
    "Loop": "a loop may not end; export recurrent layers as LSTM or GRU, or the decoder as a single step",
    "If": "it chooses a branch at run time; export without squeeze() of unknown sizes and without Python's if",
    "RandomNormalLike": "export in evaluation mode",
    "RandomUniformLike": "export in evaluation mode",
    "Dropout": "export in evaluation mode",
}


def _tensors(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Returns the constants of a graph and of its nodes."""
    attributes = (attribute for node in graph.node for attribute in node.attribute)
    return [*graph.initializer, *(attribute.t for attribute in attributes if attribute.HasField("t"))]


def _keep(values: Any, names: Sequence[str]) -> None:
    """Reduces a graph's inputs or outputs to these, in this order."""
    by_name = {value.name: value for value in values}
    kept = [by_name[name] for name in names]
    del values[:]
    values.extend(kept)


def _widened(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a graph of float32 in float64; recurrent layers stay in float32, between casts."""
    wide = onnx.ModelProto()
    wide.CopyFrom(inliner.inline_local_functions(proto))
    graph = wide.graph
    full, double = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
    for tensor in _tensors(graph):
        if tensor.data_type == full:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == full:
            value.type.tensor_type.elem_type = double
    del graph.value_info[:]
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == full:
                attribute.i = double
        if node.op_type not in RECURRENT:
            graph.node.append(node)
            continue
        # The fifth input has the lengths, which are integers.
        for place, name in enumerate(node.input):
            if name and place != 4:
                narrow = f"{next(filter(None, node.output))}/input{place}"
                graph.node.append(onnx.helper.make_node("Cast", [name], [narrow], to=full))
                node.input[place] = narrow
        outputs = [name for name in node.output if name]
        renamed = {name: f"{name}/float32" for name in outputs}
        node.output[:] = [renamed.get(name, "") for name in node.output]
        graph.node.append(node)
        graph.node.extend(onnx.helper.make_node("Cast", [renamed[name]], [name], to=double) for name in outputs)
    return wide
