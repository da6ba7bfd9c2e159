"""Tests of integer factors: those of at most 64 are exact if kernels add in 16 bits, and all larger ones are found."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.graph_content import wide_factors, wide_factors_of
from attendant.runtime.bundle.manifest import StateTensor
from attendant.runtime.bundle.reading import Unfit
from tests.paths import ROOT
from tests.unit.export.rewriting.graphs import FLOAT, model_of

UINT8, INT8, INT32 = TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32
K, N = 8, 4


def product(factor: str = "factor", operator: str = "MatMulInteger", domain: str = "") -> onnx.NodeProto:
    return helper.make_node(operator, ["codes", factor], ["sums"], domain=domain)


def model(nodes: Sequence[onnx.NodeProto], constants: Mapping[str, Any], **inputs: int) -> bytes:
    values = {"codes": (UINT8, ["R", K])} | {name: (kind, [K, N]) for name, kind in inputs.items()}
    return model_of(nodes, values, {"sums": (INT32, ["R", N])}, constants).SerializeToString()


def codes(largest: int, dtype: Any = np.int8) -> np.ndarray:
    values = np.zeros((K, N), dtype)
    values[3, 2] = largest
    return values


@pytest.mark.parametrize(
    ("factor", "reason"),
    [
        (codes(64), None),
        (codes(-64), None),
        (codes(65), "codes up to 65, must be at most 64"),
        (codes(-128), "codes up to 128, must be at most 64"),
        # Kernels for unsigned factors add in 32 bits.
        (codes(255, np.uint8), None),
    ],
)
def test_a_constant_factor_is_as_large_as_its_largest_code(factor: np.ndarray, reason: str | None) -> None:
    lines = wide_factors_of(model([product()], {"factor": factor}))
    assert lines == ([] if reason is None else [f"MatMulInteger 'sums': the factor 'factor' has {reason}"])


def test_a_factor_in_a_body_of_a_node_is_seen_and_may_be_from_outside() -> None:
    for name, factor, wide in (
        ("own", codes(1), 0),
        ("own", codes(65), 1),
        ("outer", codes(1), 0),
        ("outer", codes(65), 1),
    ):
        body = helper.make_graph(
            [
                helper.make_node("Identity", ["before"], ["after"]),
                helper.make_node("MatMulInteger", ["x", name], ["y"]),
            ],
            "body",
            [helper.make_tensor_value_info("before", FLOAT, [1]), helper.make_tensor_value_info("x", UINT8, ["R", K])],
            [helper.make_tensor_value_info("after", FLOAT, [1]), helper.make_tensor_value_info("y", INT32, ["R", N])],
            [onnx.numpy_helper.from_array(factor, "own")] if name == "own" else [],
        )
        scan = helper.make_node("Scan", ["start", "codes"], ["end", "sums"], body=body, num_scan_inputs=1)
        constants = {"start": np.zeros(1, np.float32)} | ({"outer": factor} if name == "outer" else {})
        assert len(wide_factors_of(model([scan], constants))) == wide, name


def clipped(least: int, most: int) -> bytes:
    """Returns an encoder whose keys are clipped, transposed codes."""
    nodes = [
        helper.make_node("Clip", ["x", "least", "most"], ["clipped"]),
        helper.make_node("Transpose", ["clipped"], ["keys"], perm=[1, 0]),
    ]
    ends = {"least": np.int8(least), "most": np.int8(most)}
    return model_of(nodes, {"x": (INT8, [N, K])}, {"keys": (INT8, [K, N])}, ends).SerializeToString()


@pytest.mark.parametrize(
    ("encoder", "output", "size"),
    [
        (clipped(-64, 64), None, None),
        (clipped(-64, 65), None, "up to 65"),
        (clipped(-128, 64), None, "up to 128"),
        # Steps change it, so the encoder bounds only its first value.
        (clipped(-64, 64), "keys_out", "of any size"),
        (model_of([], {"keys": (INT8, [K, N])}, {"keys": (INT8, [K, N])}, {}).SerializeToString(), None, "of any size"),
    ],
)
def test_a_stored_factor_is_as_large_as_the_encoder_clips_it(
    encoder: bytes, output: str | None, size: str | None
) -> None:
    step = model([product("keys")], {}, keys=INT8)
    lines = wide_factors_of(step, encoder, [StateTensor(input="keys", output=output, scope="source")])
    assert lines == (
        [] if size is None else [f"MatMulInteger 'sums': the factor 'keys' has codes {size}, must be at most 64"]
    )


def test_an_unknown_factor_may_be_of_any_size() -> None:
    step = model([product("other")], {}, other=INT8)
    assert wide_factors_of(step) == [
        "MatMulInteger 'sums': the factor 'other' has codes of any size, must be at most 64"
    ]
    circle = [helper.make_node("Identity", [source], [result]) for source, result in (("a", "b"), ("b", "a"))]
    assert len(wide_factors_of(model([*circle, product("a")], {}))) == 1
    with pytest.raises(Unfit, match=r"the operator 'QGemm' of 'com.microsoft' is not among those of an export"):
        wide_factors_of(model([product("factor", "QGemm", "com.microsoft")], {"factor": codes(1)}))


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("lstm", {"DynamicQuantizeLSTM", "MatMulIntegerToFloat", "MatMulInteger"}),
        ("gru", {"MatMulIntegerToFloat", "MatMulInteger"}),
    ],
)
def test_bundles_with_8_bit_factors_are_recognized(name: str, operators: set[str]) -> None:
    bundle = open_bundle(ROOT / "tests" / "eight_bits" / name)
    lines = wide_factors(bundle.path, bundle.manifest.graphs["int8"])
    assert {line.split()[1] for line in lines} == operators
    # One or more per direction of the encoder, in the body of a Scan.
    assert sum(line.startswith("int8/encoder.onnx") for line in lines) >= 2
    assert any("'memory' has codes of any size" in line for line in lines)
