"""The int8 graphs that look at the whole vocabulary, for as long as those with lists are held against them."""

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from export.graph_files import write_pair
from export.int8.quantization import quantize
from export.traced import TracedPair
from runtime.bundle import Bundle
from runtime.onnx_stepper import OnnxStepper


@contextmanager
def full_vocabulary(bundle: Bundle, plain: TracedPair) -> Iterator[tuple[Bundle, OnnxStepper]]:
    """The bundle with such graphs, in a folder that goes afterwards, and what runs them.

    Args:
        plain: the bundle's fp32 graphs.
    """
    with tempfile.TemporaryDirectory(prefix="attendant-int8-") as name:
        folder = Path(name)
        graphs = {**bundle.manifest.graphs, "int8": write_pair(folder, "int8", quantize(plain).graphs)}
        full = dataclasses.replace(bundle, path=folder, manifest=bundle.manifest.model_copy(update={"graphs": graphs}))
        yield full, OnnxStepper(full, "int8")
