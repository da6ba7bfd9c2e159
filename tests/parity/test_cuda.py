"""Tests that need a GPU. Each is skipped unless a session really uses CUDA."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from attendant.export.bundle_writer import write_bundle
from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import TensorSpec
from attendant.runtime.bundle_stepper import check_decoding
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.device import DeviceStepper, select_graph
from attendant.runtime.onnx.session import BoundSession
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import DecoderState
from tests.bundles import TINY_PLAN, tiny_exportable

pytestmark = pytest.mark.cuda

MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"decoder_input_feeding": True, "decoder_num_layers": 2},
    "gru": {"cell": "gru", "attention_score": "scaled_dot", "attention_key_size": 8, "attention_value_size": 10},
    "rnn": {"cell": "rnn", "attention_score": "additive", "attention_coverage": True},
    "none": {"attention_score": "none", "decoder_source_vector": True},
}
TOLERANCES = {"fp32": 1e-3, "fp16": 5e-2}


@pytest.fixture(scope="module")
def cuda() -> None:
    """Skips unless a session really uses CUDA: onnxruntime lists the provider even if it can't load it."""
    spec = TensorSpec(name="probe", dtype="float32", shape=("R",))
    try:
        BoundSession.of_bytes("probe", select_graph([spec]), provider="cuda", num_threads=1)
    except UserError as refusal:
        pytest.skip(str(refusal))


@pytest.fixture(scope="module", params=MODELS)
def bundle(request: pytest.FixtureRequest, cuda: None, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    exportable = tiny_exportable(weight_bound=0.7, **MODELS[request.param])
    folder = tmp_path_factory.mktemp("cuda") / "bundle"
    return write_bundle(exportable, folder, precisions=("fp32", "fp16"), plan=TINY_PLAN)


def sources_of(random: np.random.Generator, count: int) -> list[list[int]]:
    return [random.integers(4, 14, length).tolist() for length in random.integers(1, 40, count)]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_steps_on_cuda_equal_those_on_the_cpu(bundle: Bundle, precision: Any) -> None:
    """Covers unequal lengths, joins, leaves, bans, forced symbols and attention, in shapes that recur and alternate."""
    random = np.random.default_rng(7)
    device = DeviceStepper(bundle, precision)
    pair = (device, OnnxStepper(bundle))
    first = sources_of(random, 5)
    states: list[DecoderState] = [stepper.encode(first) for stepper in pair]
    for number in range(40):
        if number % 8 == 3:
            joining = sources_of(random, 3)
            states = [
                stepper.concat([state, stepper.encode(joining)]) for stepper, state in zip(pair, states, strict=True)
            ]
        num_rows = states[0].num_rows
        previous = random.integers(4, 16, num_rows)
        forced = random.integers(-1, device.vocabulary_size, num_rows)
        banned = random.integers(-1, 16, (num_rows, 2)) if number % 5 == 4 else None
        stepped = [
            stepper.step(
                state,
                previous,
                num_candidates=device.vocabulary_size,
                forced_ids=forced,
                banned_ids=banned,
                attention=True,
            )
            for stepper, state in zip(pair, states, strict=True)
        ]
        tolerance = TOLERANCES[precision]
        actual, expected = (output for output, _ in stepped)
        ordered = [np.zeros((num_rows, device.vocabulary_size), np.float32) for _ in pair]
        for array, output in zip(ordered, (actual, expected), strict=True):
            np.put_along_axis(array, output.candidate_ids, output.candidate_log_probs, axis=1)
        np.testing.assert_allclose(*ordered, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(actual.forced_log_probs, expected.forced_log_probs, rtol=tolerance, atol=tolerance)
        if actual.attention is not None and expected.attention is not None:
            width = min(actual.attention.shape[1], expected.attention.shape[1])
            np.testing.assert_allclose(actual.attention[:, :width], expected.attention[:, :width], atol=tolerance)
        states = [state for _, state in stepped]
        if number % 4 == 1:
            rows = np.sort(random.integers(0, num_rows, min(num_rows, 12)))
            states = [stepper.select(state, rows) for stepper, state in zip(pair, states, strict=True)]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_golden_examples_are_reproduced_on_cuda(bundle: Bundle, precision: Any) -> None:
    assert check_decoding(bundle, DeviceStepper(bundle, precision), precision, "cuda") == []


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_no_tensor_of_a_step_leaves_the_device(bundle: Bundle, precision: Any, tmp_path: Path) -> None:
    """Checks the graph that onnxruntime runs: a Memcpy node would copy at every step."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "step.onnx")
    options.log_severity_level = 3
    file = bundle.path / bundle.manifest.graphs[precision].decoder_step.file
    ort.InferenceSession(str(file), options, providers=["CUDAExecutionProvider"])
    operators = [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]
    assert operators and not [name for name in operators if name.startswith("Memcpy")]
