"""fp16 graphs for every cell and attention: near the fp32 graphs on the CPU, where conversions stand in for CUDA."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from attendant.export.bundle_writer import REWRITERS, write_bundle
from attendant.export.graph import TracedPair
from attendant.export.origins import exportable_bundle
from attendant.export.published import verify
from attendant.export.rewriting.fp16 import convert
from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.device.stepper import DeviceStepper
from attendant.runtime.errors import VerificationFailed
from attendant.runtime.onnx.stepper import OnnxStepper
from tests.bundles import TINY_PLAN, tiny_exportable

MODELS: list[dict[str, Any]] = [
    {"cell": "lstm", "attention_score": "general", "decoder_input_feeding": True, "decoder_num_layers": 2},
    {"cell": "gru", "attention_score": "scaled_dot", "attention_key_size": 8, "attention_value_size": 10},
    {"cell": "rnn", "attention_score": "additive", "attention_coverage": True, "decoder_readout": "maxout"},
    {"cell": "gru", "attention_score": "concat", "encoder_bidirectional": False, "decoder_initial_state": "mean"},
    {"cell": "lstm", "attention_score": "none", "decoder_source_vector": True},
    {"cell": "lstm", "attention_score": "additive", "decoder_copying": True, "shared_embeddings": True},
]


@pytest.mark.parametrize("options", MODELS, ids=lambda options: f"{options['cell']}-{options['attention_score']}")
def test_every_cell_and_attention_is_near(options: dict[str, Any], tmp_path: Path) -> None:
    exportable = tiny_exportable(weight_bound=0.5, **options)
    bundle = write_bundle(exportable, tmp_path / "bundle", precisions=("fp32", "fp16"), plan=TINY_PLAN)
    _, certificate = bundle.manifest.certificates
    assert (certificate.precision, certificate.reference) == ("fp16", "fp32")
    if certificate.provider == "cpu":
        assert "not run on CUDA" in certificate.arithmetic["CUDA"]
    plain = {name for name, how in certificate.arithmetic.items() if "weight" in name and how != "fp16"}
    # A mean over positions has no bound that the graph tells; it is projected once per source.
    assert plain == ({"model.bridge.layers.0.weight"} if options.get("decoder_initial_state") == "mean" else set())
    assert bundle.manifest.default_precision["cuda"] == "fp32", "its quality was not measured"
    # What adds up from step to step is kept as it was; what is only read is not.
    specs = {spec.name: spec.dtype for spec in bundle.manifest.graphs["fp16"].decoder_step.inputs}
    expected = {"hidden": "float32" if options["cell"] == "gru" else "float16", "memory": "float16", "keys": "float16",
                "cell": "float32", "coverage": "float32"}  # fmt: skip
    assert {name: dtype for name, dtype in specs.items() if name in expected} == {
        name: dtype for name, dtype in expected.items() if name in specs
    }


@pytest.fixture(scope="module")
def half_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("fp16") / "bundle"
    return write_bundle(tiny_exportable(), folder, precisions=("fp32", "fp16"), plan=TINY_PLAN)


def test_the_state_on_the_device_has_the_same_bits(half_bundle: Bundle) -> None:
    """State tensors of several types, moved about by graphs made for them."""
    random = np.random.default_rng(3)
    sources = [random.integers(4, 14, length).tolist() for length in random.integers(1, 30, 20)]
    ids = half_bundle.manifest.special_ids
    for beam_size in (1, 4):
        options = DecodingOptions(beam_size=beam_size, max_length=16)
        steppers = (DeviceStepper(half_bundle, "fp16", "cpu"), OnnxStepper(half_bundle, "fp16"))
        actual, expected = (decode_all(stepper, sources, options, ids, max_rows=24) for stepper in steppers)
        assert actual == expected


def test_a_bundle_is_converted_like_its_run(half_bundle: Bundle, tmp_path: Path) -> None:
    plain = write_bundle(tiny_exportable(), tmp_path / "plain", plan=TINY_PLAN)
    anew = write_bundle(exportable_bundle(plain), tmp_path / "anew", precisions=("fp32", "fp16"), plan=TINY_PLAN)
    assert anew.manifest.graphs == half_bundle.manifest.graphs
    assert open_bundle(tmp_path / "anew").manifest.name == "tiny"


def test_verifying_says_what_has_not_run(half_bundle: Bundle) -> None:
    lines = [check.text for check in verify(half_bundle.path)]
    assert any(line.startswith("fp16 on cpu: ") and line.endswith("CUDA's kernels have not run") for line in lines)


def with_a_gate_closed(pair: TracedPair) -> None:
    graph = pair.decoder_step.model.graph
    next(node for node in graph.node if node.op_type == "Tanh").op_type = "Sigmoid"


def with_the_bans_in_half(pair: TracedPair) -> None:
    """-1e9 is -inf in fp16, and a source that is masked altogether is no number."""
    graph = pair.decoder_step.model.graph
    masked = next(node for node in graph.node if node.op_type == "Softmax")
    infinite = onnx.helper.make_tensor("infinite", onnx.TensorProto.FLOAT, [], [float("-inf")])
    graph.initializer.append(infinite)
    place = list(graph.node).index(masked)
    graph.node.insert(place, onnx.helper.make_node("Mul", [masked.input[0], "infinite"], ["beyond"], name="beyond"))
    masked.input[0] = "beyond"


@pytest.mark.parametrize("fault", [with_a_gate_closed, with_the_bans_in_half])
def test_wrong_fp16_graphs_are_refused(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(pair: Any) -> TracedPair:
        converted = convert(pair)
        fault(converted)
        return converted

    monkeypatch.setitem(REWRITERS, "fp16", faulty)
    with pytest.raises(VerificationFailed, match=r"the fp16 graphs on .* are refused"):
        write_bundle(tiny_exportable(), tmp_path / "bundle", precisions=("fp32", "fp16"), plan=TINY_PLAN)
    assert list(tmp_path.iterdir()) == []
