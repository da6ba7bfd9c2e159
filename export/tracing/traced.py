"""A finished graph: what is written into a bundle, and what the manifest says of it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from attendant.runtime.bundle.manifest import GraphPair, GraphSpec, Precision, StateTensor, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedGraph:
    """One graph, with its inputs and outputs as the manifest names them."""

    model: onnx.ModelProto
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def to_bytes(self) -> bytes:
        """The same for the same weights."""
        return self.model.SerializeToString(deterministic=True)

    def write(self, folder: Path, file: str) -> GraphSpec:
        """Writes the graph to `folder / file`; returns what the manifest says of it."""
        content = self.to_bytes()
        (folder / file).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        return GraphSpec(file=file, sha256=digest, opset=self.opset, inputs=self.inputs, outputs=self.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPair:
    """The two graphs of one precision, and the tensors that pass between them; see GraphPair of the manifest."""

    encoder: TracedGraph
    decoder_step: TracedGraph
    state: tuple[StateTensor, ...]
    min_queries: int

    def write(self, folder: Path, precision: Precision) -> GraphPair:
        """Writes both graphs into `folder / precision`, a new folder; returns what the manifest says of them."""
        (folder / precision).mkdir()
        return GraphPair(
            encoder=self.encoder.write(folder, f"{precision}/encoder.onnx"),
            decoder_step=self.decoder_step.write(folder, f"{precision}/decoder_step.onnx"),
            state=self.state,
            min_queries=self.min_queries,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenPair:
    """The graphs of another precision than fp32.

    Attributes:
        arithmetic: matrix, tensor or operation -> how it is computed or stored, and why.
    """

    graphs: TracedPair
    arithmetic: Mapping[str, str]
