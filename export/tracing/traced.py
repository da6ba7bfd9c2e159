"""A finished graph: what is written into a bundle, and what the manifest says of it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import ClearMetadataAndDocStringPass, RemoveUnusedNodesPass

from attendant.runtime.bundle.manifest import GraphPair, GraphSpec, Precision, StateTensor, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedGraph:
    """One graph, with its inputs and outputs as the manifest names them."""

    model: onnx.ModelProto
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, model: ir.Model) -> "TracedGraph":
        """The graph as it is written. `model` is used up: what nothing reads goes, and what is inferred of values."""
        RemoveUnusedNodesPass()(model)
        ClearMetadataAndDocStringPass()(model)
        proto = ir.to_proto(model)
        # Inferred shapes hold the example's sizes, and the runtime would warn of them; or are of replaced values.
        del proto.graph.value_info[:]
        # What the passes leave: of the model, and of its inputs, outputs and weights.
        del proto.metadata_props[:]
        for part in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
            part.ClearField("doc_string")
            part.ClearField("metadata_props")
        onnx.checker.check_model(proto)
        inputs, outputs = (tuple(map(_spec, values)) for values in (model.graph.inputs, model.graph.outputs))
        return cls(model=proto, opset=model.opset_imports[""], inputs=inputs, outputs=outputs)

    def to_bytes(self) -> bytes:
        """The same for the same weights."""
        return self.model.SerializeToString(deterministic=True)

    def write(self, folder: Path, file: str) -> GraphSpec:
        """Writes the graph to `folder / file`; returns what the manifest says of it."""
        content = self.to_bytes()
        (folder / file).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        return GraphSpec(file=file, sha256=digest, opset=self.opset, inputs=self.inputs, outputs=self.outputs)


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
        """Writes both graphs into `folder / precision`, a new folder; returns what the manifest says of them."""
        (folder / precision).mkdir()
        return GraphPair(
            encoder=self.encoder.write(folder, f"{precision}/encoder.onnx"),
            decoder_step=self.decoder_step.write(folder, f"{precision}/decoder_step.onnx"),
            state=self.state,
            min_queries=self.min_queries,
        )
