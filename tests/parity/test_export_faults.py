"""Tests of the export's verification: it refuses wrong graphs, and a refused export leaves no files."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from attendant.export.bundle_writer import write_bundle
from attendant.export.graph import TracedPair
from attendant.export.origins import exportable_bundle
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.errors import VerificationFailed
from tests.bundles import TINY_PLAN, tiny_exportable


@pytest.fixture(scope="module")
def traced(tiny_bundle_path: Path) -> TracedPair:
    """Returns the graphs of the tiny model, which the session has traced."""
    return exportable_bundle(open_bundle(tiny_bundle_path)).graphs()


def without_lengths(pair: TracedPair) -> None:
    """Drops the lengths, as the exporter by itself does: recurrent nodes then run over the padding."""
    (node,) = [node for node in pair.encoder.model.graph.node if node.op_type == "LSTM"]
    node.input[4] = ""


def with_slightly_wrong_weights(pair: TracedPair) -> None:
    """Changes one row of the output layer's weights by a thousandth."""
    graph = pair.decoder_step.model.graph
    tensor = max(
        (candidate for candidate in graph.initializer if len(candidate.dims) == 2 and 16 in candidate.dims),
        key=lambda candidate: candidate.dims[0],
    )
    values = numpy_helper.to_array(tensor).copy()
    values[5] *= 1.001
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def with_neighbours_mixed_in(pair: TracedPair) -> None:
    """Scales by the maximum of the batch and back, as dynamic quantization does: only the last bits change."""
    graph = pair.encoder.model.graph
    (memory,) = [node for node in graph.node if "memory" in node.output]
    memory.output[0] = "memory_alone"
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == "memory":
                node.input[place] = "memory_alone"
    graph.node.extend(
        [
            onnx.helper.make_node("ReduceMax", ["memory_alone"], ["scale"], keepdims=0),
            onnx.helper.make_node("Div", ["memory_alone", "scale"], ["scaled"]),
            onnx.helper.make_node("Mul", ["scaled", "scale"], ["memory"]),
        ]
    )


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (without_lengths, "encoder/memory: off by"),
        (with_slightly_wrong_weights, "step/log_probs: off by"),
        (with_neighbours_mixed_in, "encoder/memory: not the same bits alone and with batch-mates"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_graph_is_refused(
    fault: Callable[[TracedPair], None], expected: str, traced: TracedPair, tmp_path: Path
) -> None:
    pair = dataclasses.replace(
        traced,
        **{
            name: dataclasses.replace(graph, model=onnx.ModelProto.FromString(graph.to_bytes()))
            for name, graph in (("encoder", traced.encoder), ("decoder_step", traced.decoder_step))
        },
    )
    fault(pair)
    exportable = dataclasses.replace(tiny_exportable(), trace=lambda model: pair)
    with pytest.raises(VerificationFailed) as refusal:
        write_bundle(exportable, tmp_path / "bundle", plan=TINY_PLAN)
    assert any(line.startswith(expected) for line in refusal.value.differences), refusal.value
    assert not any("amplify rounding" in line for line in refusal.value.differences)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_amplify_rounding_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Checks the tiny model as if its rounding were large, since other weights differ by chance."""
    monkeypatch.setattr("attendant.export.verification.certification.UNSTABLE", 0.0)
    monkeypatch.setattr("attendant.export.verification.certification.TOLERANCE", 0.0)
    monkeypatch.setattr("attendant.export.verification.certification.ROUNDING_MULTIPLE", 0.0)
    with pytest.raises(VerificationFailed) as refusal:
        write_bundle(tiny_exportable(), tmp_path / "bundle", plan=TINY_PLAN)
    assert "these weights amplify rounding" in refusal.value.differences[-1]


def test_a_correct_graph_is_published_and_kept_if_its_replacement_fails(
    traced: TracedPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exportable = dataclasses.replace(tiny_exportable(), trace=lambda model: traced)
    old = write_bundle(exportable, tmp_path / "bundle", plan=TINY_PLAN)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    monkeypatch.setattr(
        "attendant.export.bundle_writer.check_decoding", lambda *arguments: ["golden example 1: differs"]
    )
    with pytest.raises(VerificationFailed, match="golden example 1"):
        write_bundle(exportable, tmp_path / "bundle", plan=TINY_PLAN, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    assert open_bundle(tmp_path / "bundle").manifest == old.manifest
