"""Tests of fp16 graphs: close to the fp32 graphs on the CPU, on which conversions replace CUDA's kernels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from attendant.export.bundle_writer import REWRITERS, write_bundle
from attendant.export.graph import TracedPair
from attendant.export.origins import exportable_bundle
from attendant.export.rewriting.fp16 import convert
from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle.manifest import Reference
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import VerificationFailed
from attendant.runtime.onnx.device import DeviceStepper
from attendant.runtime.onnx.stepper import OnnxStepper
from tests.bundles import TINY_PLAN

WITHOUT_BOUND = {
    "mean": {"model.bridge.layers.0.weight"},
    "zeros": {"model.decoder.cells.0.rnn.weight_hh_l0", "model.decoder.readout.project.weight"},
    "sum": {"model.decoder.cells.0.rnn.weight_ih_l0"},
}
"""Weights that stay in fp32, by the initial state or readout whose values have no bound in the graphs."""


def check_fp16(bundle: Bundle, options: dict[str, Any]) -> None:
    """Checks the fp16 graphs of a model with these options."""
    (certificate,) = (each for each in bundle.manifest.certificates if each.precision == "fp16")
    assert certificate.reference == "fp32"
    if certificate.provider == "cpu":
        assert "not run on CUDA" in certificate.arithmetic["CUDA"]
    plain = {name for name, how in certificate.arithmetic.items() if "weight" in name and how != "fp16"}
    choices = (options.get("decoder_initial_state"), options.get("decoder_readout"))
    assert plain == set().union(*(WITHOUT_BOUND.get(choice, set()) for choice in choices))
    assert bundle.manifest.default_precision["cuda"] == "fp32", "its quality was not measured"
    # State that accumulates over steps stays fp32. Other state becomes fp16, unless products in fp32 read it.
    memory = "float32" if options.get("decoder_initial_state") == "zeros" else "float16"
    specs = {spec.name: spec.dtype for spec in bundle.manifest.graphs["fp16"].decoder_step.inputs}
    expected = {"hidden": "float32" if options["cell"] == "gru" else "float16", "memory": memory, "keys": "float16",
                "cell": "float32", "coverage": "float32"}  # fmt: skip
    assert {name: dtype for name, dtype in specs.items() if name in expected} == {
        name: dtype for name, dtype in expected.items() if name in specs
    }


@pytest.fixture(scope="module")
def half_bundle(tiny_bundle_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    origin, folder = exportable_bundle(open_bundle(tiny_bundle_path)), tmp_path_factory.mktemp("fp16") / "bundle"
    return write_bundle(origin, folder, precisions=("fp32", "fp16"), plan=TINY_PLAN)


def test_the_state_on_the_device_has_the_same_bits(half_bundle: Bundle) -> None:
    """Covers state tensors of several types, which generated graphs reorder and join."""
    random = np.random.default_rng(3)
    sources = [random.integers(4, 14, length).tolist() for length in random.integers(1, 30, 20)]
    ids = half_bundle.manifest.special_ids
    for beam_size in (1, 4):
        options = DecodingOptions(beam_size=beam_size, max_length=16)
        steppers = (DeviceStepper(half_bundle, "fp16", "cpu"), OnnxStepper(half_bundle, "fp16"))
        actual, expected = (decode_all(stepper, sources, options, ids, max_rows=24) for stepper in steppers)
        assert actual == expected


def with_the_bans_in_half(pair: TracedPair) -> None:
    """Makes the scores before the softmax infinite, as -1e9 is in fp16: the attention becomes NaN."""
    graph = pair.decoder_step.model.graph
    masked = next(node for node in graph.node if node.op_type == "Softmax")
    infinite = onnx.helper.make_tensor("infinite", onnx.TensorProto.FLOAT, [], [float("-inf")])
    graph.initializer.append(infinite)
    place = list(graph.node).index(masked)
    graph.node.insert(place, onnx.helper.make_node("Mul", [masked.input[0], "infinite"], ["beyond"], name="beyond"))
    masked.input[0] = "beyond"


def test_wrong_fp16_graphs_are_refused(tiny_bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(pair: Any) -> TracedPair:
        converted = convert(pair)
        with_the_bans_in_half(converted)
        return converted

    monkeypatch.setitem(REWRITERS, "fp16", faulty)
    with pytest.raises(VerificationFailed, match=r"the fp16 graphs on .* are refused"):
        write_bundle(
            exportable_bundle(open_bundle(tiny_bundle_path)),
            tmp_path / "bundle",
            precisions=("fp32", "fp16"),
            plan=TINY_PLAN,
        )
    assert list(tmp_path.iterdir()) == []


def test_int8_must_be_batch_invariant_even_if_the_bundles_fp16_is_not(half_bundle: Bundle) -> None:
    manifest = half_bundle.manifest
    certificates = [
        each.model_copy(update={"batch_invariant": each.precision == "fp32"}) for each in manifest.certificates
    ]
    changes = {"certificates": tuple(certificates), "reference": Reference.model_construct(precision="fp32")}
    again = exportable_bundle(replace(half_bundle, manifest=manifest.model_copy(update=changes)))
    assert again.must_be_invariant
    # A server compares fp16 answers with the fp32 reference, but that is not a reference of fp16.
    assert again.references.keys() == {"fp32"}
