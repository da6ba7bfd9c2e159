"""Writes graphs into a bundle's folder."""

import hashlib
from pathlib import Path

from attendant.export.tracing.traced import TracedGraph, TracedPair
from attendant.runtime.bundle.manifest import GraphPair, GraphSpec, Precision


def write_pair(folder: Path, precision: Precision, pair: TracedPair) -> GraphPair:
    """Writes both graphs into `folder / precision`, a new folder; returns what the manifest says of them."""
    (folder / precision).mkdir()
    return GraphPair(
        encoder=_write(folder, pair.encoder, f"{precision}/encoder.onnx"),
        decoder_step=_write(folder, pair.decoder_step, f"{precision}/decoder_step.onnx"),
        state=pair.state,
        min_queries=pair.min_queries,
    )


def _write(folder: Path, graph: TracedGraph, file: str) -> GraphSpec:
    content = graph.to_bytes()
    (folder / file).write_bytes(content)
    return GraphSpec(
        file=file,
        sha256=hashlib.sha256(content).hexdigest(),
        opset=graph.opset,
        inputs=graph.inputs,
        outputs=graph.outputs,
    )
