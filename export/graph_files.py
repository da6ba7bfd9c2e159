"""Writes graphs, and what goes with them, into a bundle's folder."""

import hashlib
from pathlib import Path

from export.traced import TracedGraph, TracedPair
from runtime.manifest import GraphPair, GraphSpec, Precision, ShortlistSpec
from runtime.shortlist import Shortlist

SHORTLIST_NAME = "shortlist.bin"


def write_pair(
    folder: Path, precision: Precision, pair: TracedPair, shortlist: ShortlistSpec | None = None
) -> GraphPair:
    """Writes both graphs into `folder / precision`, a new folder; returns what the manifest says of them."""
    (folder / precision).mkdir()
    return GraphPair(
        encoder=_write(folder, pair.encoder, f"{precision}/encoder.onnx"),
        decoder_step=_write(folder, pair.decoder_step, f"{precision}/decoder_step.onnx"),
        state=pair.state,
        min_queries=pair.min_queries,
        shortlist=shortlist,
    )


def write_shortlist(folder: Path, shortlist: Shortlist) -> ShortlistSpec:
    """Writes the tables that lists are made from; returns what the manifest says of them."""
    (folder / SHORTLIST_NAME).write_bytes(shortlist.to_bytes())
    return ShortlistSpec(
        file=SHORTLIST_NAME,
        size=shortlist.size,
        num_leading=shortlist.num_leading,
        num_candidates=shortlist.candidates.shape[1],
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
