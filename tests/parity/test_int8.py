"""Tests of int8 graphs: the same bits with any batch-mates, and close to the fp32 graphs.

The writer's certification also compares every probe and decoding alone with the same one in batches.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from attendant.export.bundle_writer import REWRITERS, write_bundle
from attendant.export.graph import TracedPair
from attendant.export.origins import Exportable, exportable_bundle
from attendant.export.published import verify
from attendant.export.rewriting import products
from attendant.export.rewriting.int8 import quantize
from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError, VerificationFailed
from attendant.runtime.onnx import stepper as onnx_stepper
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import attention_cells
from tests.bundles import TINY_PLAN, tiny_exportable
from tests.paths import ROOT


def check_int8(bundle: Bundle, options: dict[str, Any]) -> None:
    """Checks the int8 graphs of a model with these options."""
    (certificate,) = (each for each in bundle.manifest.certificates if each.precision == "int8")
    assert certificate.reference == "fp32" and certificate.batch_invariant
    # Random weights almost give ties at every symbol, and codes of 7 bits are twice as coarse as those of 8 bits. At
    # least 34 of 72 decodings were identical, depending on the processor.
    assert certificate.tokens.num_identical >= 0.4 * certificate.tokens.num_compared
    if options.get("decoder_input_feeding") and "decoder_readout" not in options:
        # The values must be bounded: otherwise each step would compute its own scales.
        assert certificate.arithmetic["attentional_codes"] == "stored as uint8 in fixed steps"
    floats = {"Gemm", "LSTM", "GRU", "RNN"}
    score = None if options.get("decoder_copying") else options.get("attention_score")
    if score in ("general", "dot", "scaled_dot"):
        floats.add("MatMul")
        (keys,) = (
            spec
            for spec in bundle.manifest.graphs["int8"].decoder_step.inputs
            if spec.name == ("memory_transposed" if score == "dot" else "keys")
        )
        assert (keys.dtype, keys.shape[2]) == ("int8", "S"), "positions are the last axis"
    left = [node.op_type for node in nodes_of(bundle) if node.op_type in floats]
    assert left == []
    assert {example.precision for example in bundle.golden} == bundle.manifest.graphs.keys()


def nodes_of(bundle: Bundle) -> list[onnx.NodeProto]:
    pair = bundle.manifest.graphs["int8"]
    graphs = [onnx.load(bundle.path / graph.file).graph for graph in (pair.encoder, pair.decoder_step)]
    return [node for graph in graphs for node in graph.node]


@pytest.fixture(scope="module")
def int8_bundle(tiny_bundle_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    origin, folder = exportable_bundle(open_bundle(tiny_bundle_path)), tmp_path_factory.mktemp("int8") / "bundle"
    return write_bundle(origin, folder, precisions=("fp32", "int8"), plan=TINY_PLAN)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_joining_a_running_batch_changes_no_bit(precision: Precision, int8_bundle: Bundle) -> None:
    """Covers sources of different widths that join and leave between the steps, as in the engine."""
    stepper, special_ids = OnnxStepper(int8_bundle, precision), int8_bundle.manifest.special_ids
    random = np.random.default_rng(3)
    sources = [random.integers(4, 14, length).tolist() for length in random.integers(1, 40, 40)]
    options = [DecodingOptions(max_length=20, beam_size=int(beam)) for beam in random.choice([1, 2, 4, 5], 40)]
    together = decode_all(stepper, sources, options, special_ids, max_rows=24)
    for source, option, hypotheses in zip(sources, options, together, strict=True):
        (alone,) = decode_all(stepper, [source], option, special_ids)
        assert alone == hypotheses


def test_attention_cells_are_counted_as_they_are_computed(int8_bundle: Bundle) -> None:
    for stepper, queries in (OnnxStepper(int8_bundle), 2), (OnnxStepper(int8_bundle, "int8"), 1):
        state = stepper.concat([stepper.encode([[4, 5, 3]]), stepper.encode([[*range(4, 14), 3]])])
        _, state = stepper.step(state, np.array([2, 2]), num_candidates=1)
        assert attention_cells(state) == (3 + 11, 2 * queries * 16)
        # A state with one source left, and one that was never joined to others.
        assert attention_cells(stepper.select(state, np.array([0]))) == (3, queries * 8)
        _, alone = stepper.step(stepper.encode([[4, 5, 3]]), np.array([2]), num_candidates=1)
        assert attention_cells(alone) == (3, queries * 8)


@pytest.fixture
def fp32_exportable(tiny_bundle_path: Path) -> Exportable:
    """Returns the tiny bundle, which has only fp32: its export traces nothing and needs no PyTorch weights."""
    return exportable_bundle(open_bundle(tiny_bundle_path))


def test_a_bundle_is_rewritten_like_its_run(
    fp32_exportable: Exportable, tiny_bundle_path: Path, tmp_path: Path
) -> None:
    # Tracing the run would give the same graphs: tests/parity/test_export.py checks this.
    of_run = replace(tiny_exportable(), trace=lambda model: fp32_exportable.graphs())
    precisions: tuple[Precision, ...] = ("fp32", "int8", "fp16")
    run, again = (
        write_bundle(origin, tmp_path / name, precisions=precisions, plan=TINY_PLAN)
        for name, origin in (("run", of_run), ("again", fp32_exportable))
    )
    assert again.manifest.graphs == run.manifest.graphs
    assert again.manifest.certificates[0] == open_bundle(tiny_bundle_path).manifest.certificates[0]
    assert open_bundle(tmp_path / "again").manifest.name == "tiny"


def test_export_refuses_factors_of_8_bits(
    fp32_exportable: Exportable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "LARGEST_WEIGHT", 127)
    with pytest.raises(VerificationFailed, match="the int8 graphs are refused: products would overflow") as refusal:
        write_bundle(fp32_exportable, tmp_path / "bundle", precisions=("fp32", "int8"), plan=TINY_PLAN)
    assert all("has codes up to 127, must be at most 64" in line for line in refusal.value.differences)
    assert list(tmp_path.iterdir()) == []


def test_verification_checks_what_every_processor_computes(
    int8_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "can't be computed exactly on every processor: it has codes of 8 bits"
    with pytest.raises(UserError, match=why):
        verify(ROOT / "tests" / "eight_bits" / "lstm")
    # If the bundle has fp32 too, fp32 is checked.
    monkeypatch.setattr(onnx_stepper, "wide_factors", lambda *_: ["a product has codes up to 127"])
    checks = verify(int8_bundle.path)
    assert [(check.precision, check.held) for check in checks[1:]] == [("fp32", True), ("int8", False)]
    assert re.search(rf"not checked: .*{why}.*; choose precision fp32", checks[2].text)


def test_a_bundle_of_int8_alone_can_not_be_exported_in_other_precisions(
    fp32_exportable: Exportable, tmp_path: Path
) -> None:
    alone = write_bundle(fp32_exportable, tmp_path / "alone", precisions=("int8",), plan=TINY_PLAN)
    again = write_bundle(exportable_bundle(alone), tmp_path / "again", precisions=("int8",), plan=TINY_PLAN)
    assert again.manifest.graphs == alone.manifest.graphs
    assert again.manifest.certificates == alone.manifest.certificates
    with pytest.raises(UserError, match="the origin has only int8, and no fp32 graphs"):
        write_bundle(exportable_bundle(alone), tmp_path / "new", precisions=("fp32", "int8"), plan=TINY_PLAN)
    with pytest.raises(UserError, match=r"it has codes of 8 bits, .*; export its run again"):
        exportable_bundle(open_bundle(ROOT / "tests" / "eight_bits" / "lstm"))


def with_neighbours_mixed_in(pair: TracedPair) -> None:
    """Scales by the maximum of the batch and back, as dynamic quantization does."""
    graph = pair.decoder_step.model.graph
    (normalization,) = [node for node in graph.node if node.op_type == "LogSoftmax"]
    logits = normalization.input[0]
    normalization.input[0] = "with_batch_mates"
    place = list(graph.node).index(normalization)
    for node in (
        onnx.helper.make_node("Mul", ["scaled", "scale"], ["with_batch_mates"]),
        onnx.helper.make_node("Div", [logits, "scale"], ["scaled"]),
        onnx.helper.make_node("ReduceMax", [logits], ["scale"], keepdims=0),
    ):
        graph.node.insert(place, node)


def with_a_gate_closed(pair: TracedPair) -> None:
    """Replaces a tanh by a sigmoid, and the log-softmax by a softmax."""
    graph = pair.decoder_step.model.graph
    node = next(node for node in graph.node if node.op_type == "Tanh")
    node.op_type = "Sigmoid"
    normalization = next(node for node in graph.node if node.op_type == "LogSoftmax")
    normalization.op_type = "Softmax"


def with_rows_in_wrong_places(pair: TracedPair) -> None:
    """Rolls the matrix of the decoder's cell: each input is multiplied with its neighbour's weights."""
    tensor = next(
        candidate
        for candidate in pair.decoder_step.model.graph.initializer
        if "cells.0.rnn.weight_ih" in candidate.name
    )
    tensor.raw_data = np.roll(numpy_helper.to_array(tensor), 1, axis=0).tobytes()


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (with_neighbours_mixed_in, "step/log_probs: not the same bits alone and with batch-mates"),
        (with_a_gate_closed, "step/log_probs: off by"),
        (with_rows_in_wrong_places, r"step/log_probs: 0\.\d+ of the distance between sources away from fp32"),
    ],
)
def test_wrong_int8_graphs_are_refused(
    fault: Any, expected: str, fp32_exportable: Exportable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(pair: TracedPair) -> TracedPair:
        quantized = quantize(pair)
        fault(quantized)
        return quantized

    monkeypatch.setitem(REWRITERS, "int8", faulty)
    with pytest.raises(VerificationFailed) as refusal:
        write_bundle(fp32_exportable, tmp_path / "bundle", precisions=("fp32", "int8"), plan=TINY_PLAN)
    assert any(re.match(expected, line) for line in refusal.value.differences), refusal.value
    assert list(tmp_path.iterdir()) == []
