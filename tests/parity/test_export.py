"""Tests that exported graphs equal the model: the real writer exports every architecture and verifies it.

The writer compares encoder outputs, every step's outputs and state, and decodings with PyTorch. It compares int8 and
fp16 with the fp32 graphs, and each source's results, bit for bit, alone and in batches.
tests/parity/test_export_faults.py checks that it detects faults.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from attendant.export.tracing import trace_graphs, traceable
from attendant.export.verification.certification import ROUNDING_MULTIPLE, TOLERANCE
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.training.model.stepper import TorchStepper
from tests.bundles import KINDS, tiny_model
from tests.parity.test_fp16 import check_fp16
from tests.parity.test_int8 import check_int8


@pytest.mark.parametrize("kind", [kind for kind, options in KINDS.items() if options])
def test_every_option_is_exported_exactly(kind: str, bundle_of_kind: Callable[[str], Path]) -> None:
    bundle, options = open_bundle(bundle_of_kind(kind)), KINDS[kind]
    certificate = bundle.manifest.certificates[0]
    assert certificate.precision == "fp32" and certificate.batch_invariant
    state = {tensor.input for tensor in bundle.manifest.graphs["fp32"].state}
    assert state <= {name.partition("/")[2] for name in certificate.errors}
    own = max(certificate.reference_errors.values())
    assert max(certificate.errors.values()) <= max(TOLERANCE, ROUNDING_MULTIPLE * own)
    assert certificate.tokens.num_identical + certificate.tokens.num_excused == certificate.tokens.num_compared
    check_int8(bundle, options)
    check_fp16(bundle, options)


def test_export_of_the_same_weights_is_reproducible_and_keeps_them(tiny_bundle_path: Path) -> None:
    model = tiny_model().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pair = trace_graphs(traceable(model))
    assert model.training
    assert model.state_dict().keys() == before.keys()
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
    for name, graph in (("encoder", pair.encoder), ("decoder_step", pair.decoder_step)):
        content = graph.to_bytes()
        assert content == (tiny_bundle_path / "fp32" / f"{name}.onnx").read_bytes()
        # The file contains no path of this machine.
        assert b".py" not in content
        assert b"site-packages" not in content
        assert str(Path.cwd()).encode() not in content
        assert not graph.model.graph.value_info


def test_a_step_looks_rows_up_without_computing_sizes(tiny_bundle_path: Path) -> None:
    """Checks that only Gather nodes read the layout: each node takes as long as a row of a small product."""
    nodes = onnx.load(tiny_bundle_path / "fp32" / "decoder_step.onnx").graph.node
    readers = {name: [node.op_type for node in nodes if name in node.input] for name in ("source_rows", "row_slots")}
    assert readers == {"source_rows": ["Gather"], "row_slots": ["Gather", "Gather"]}


def test_candidates_bans_and_forced_symbols_equal_pytorchs(tiny_stepper: OnnxStepper) -> None:
    reference = TorchStepper(tiny_model())
    sources = [[4, 5, 6, 3], [7, 3]]
    previous = np.array([2, 2])
    forced, banned = np.array([5, -1]), np.array([[3, -1, 4], [-1, -1, -1]])
    results = [
        stepper.step(
            stepper.encode(sources), previous, num_candidates=5, forced_ids=forced, banned_ids=banned, attention=True
        )[0]
        for stepper in (tiny_stepper, reference)
    ]
    ours, theirs = results
    assert ours.candidate_ids.tolist() == theirs.candidate_ids.tolist()
    assert not {3, 4} & set(ours.candidate_ids[0].tolist())
    np.testing.assert_allclose(ours.candidate_log_probs, theirs.candidate_log_probs, atol=1e-5)
    np.testing.assert_allclose(ours.forced_log_probs, theirs.forced_log_probs, atol=1e-5)
    assert ours.forced_log_probs[1] == 0.0
    np.testing.assert_allclose(ours.attention, theirs.attention, atol=1e-6)
    assert not ours.attention[1, 2:].any()
