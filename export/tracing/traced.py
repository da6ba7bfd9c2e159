"""A finished graph: what is written into a bundle, and what the manifest says of it."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from attendant.runtime.bundle.manifest import StateTensor, TensorSpec


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPair:
    """The two graphs of one precision, and the tensors that pass between them; see GraphPair of the manifest."""

    encoder: TracedGraph
    decoder_step: TracedGraph
    state: tuple[StateTensor, ...]
    min_queries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenPair:
    """The graphs of another precision than fp32.

    Attributes:
        arithmetic: matrix, tensor or operation -> how it is computed or stored, and why.
    """

    graphs: TracedPair
    arithmetic: Mapping[str, str]
