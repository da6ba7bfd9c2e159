"""Tests of integer products (close to float products, the same bits for a row alone, merged if possible), of candidates
by blocks, which equal TopK's, and of the constants that no state of an integer LSTM layer exceeds.
"""

import numpy as np
import onnx
import pytest
from onnx import helper

from attendant.export.graph import GraphEditor
from attendant.export.rewriting import products
from attendant.export.rewriting.bounds import Bounds
from attendant.export.rewriting.recurrent import CALIBRATION_CELLS, CALIBRATION_OUTPUT_GATE
from tests.unit.export.rewriting.graphs import FLOAT, INT64, model_of, run

RANDOM = np.random.default_rng(0)
WEIGHTS = RANDOM.standard_normal((24, 8)).astype(np.float32)
RECURRENT = RANDOM.standard_normal((16, 8)).astype(np.float32)
BIAS = RANDOM.standard_normal(8).astype(np.float32)
TABLE = (RANDOM.standard_normal((11, 8)) * np.array([1, 5, 0.01, 1, 1, 1, 1, 1])).astype(np.float32)


def in_integers(plain: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    editor = GraphEditor(plain, "int8")
    arithmetic = products.replace_products(editor, products.Activations(editor, Bounds(editor.graph, {})))
    return editor.finished().model, arithmetic


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def cell() -> onnx.ModelProto:
    """Returns W [embedding; tanh x] + U tanh h + b, like a decoder's cell. The embedding's features differ in scale."""
    return model_of(
        [
            helper.make_node("Gather", ["table", "ids"], ["embedded"]),
            helper.make_node("Tanh", ["x"], ["known"]),
            helper.make_node("Tanh", ["h"], ["hidden"]),
            helper.make_node("Concat", ["embedded", "known"], ["inputs"], axis=1),
            helper.make_node("Gemm", ["inputs", "weights", "bias"], ["projected"]),
            helper.make_node("Gemm", ["hidden", "recurrent"], ["product"]),
            helper.make_node("Add", ["projected", "product"], ["sums"]),
        ],
        {"ids": (INT64, ["R"]), "x": (FLOAT, ["R", 16]), "h": (FLOAT, ["R", 16])},
        {"sums": (FLOAT, ["R", 8])},
        {"table": TABLE, "weights": WEIGHTS, "recurrent": RECURRENT, "bias": BIAS},
    )


def test_a_bias_that_is_a_sum_of_constants_is_folded() -> None:
    """Covers output layers of more than 8,192 symbols: the exporter leaves the sum of their bias in the graph."""
    added = BIAS[::-1].copy()
    plain = model_of(
        [
            helper.make_node("Add", ["bias", "added"], ["sum"]),
            helper.make_node("Tanh", ["x"], ["known"]),
            helper.make_node("Gemm", ["known", "weights", "sum"], ["logits"]),
        ],
        {"x": (FLOAT, ["R", 24])},
        {"logits": (FLOAT, ["R", 8])},
        {"weights": WEIGHTS, "bias": BIAS, "added": added},
    )
    model, arithmetic = in_integers(plain)
    assert len(arithmetic) == 1
    assert sorted(operators(model)) == ["MatMulIntegerToFloat", "QuantizeLinear", "Tanh"]
    inputs = {"x": np.zeros((2, 24), np.float32)}
    np.testing.assert_array_equal(run(model, inputs)[0], np.stack([BIAS + added] * 2))


def test_products_of_bounded_inputs_are_merged_with_fixed_scales() -> None:
    plain = cell()
    model, arithmetic = in_integers(plain)
    assert operators(model).count("MatMulIntegerToFloat") == 1
    assert "Gemm" not in operators(model)
    assert "ReduceMax" not in operators(model)
    assert operators(model).count("Concat") == 1, "embedding, tanh x and tanh h are joined at once"
    assert all("fixed steps" in kind for kind in arithmetic.values())
    assert len(arithmetic) == 2
    inputs = {
        "ids": RANDOM.integers(0, 11, 5),
        "x": RANDOM.standard_normal((5, 16)).astype(np.float32),
        "h": RANDOM.standard_normal((5, 16)).astype(np.float32),
    }
    (expected,), (actual,) = run(plain, inputs), run(model, inputs)
    # Rounding errors are up to 1/126 of a column's largest weight, and up to 1/254 of the largest activation.
    np.testing.assert_allclose(actual, expected, atol=0.03 * np.abs(expected).max())


def test_an_unbounded_input_has_a_scale_per_row_and_rows_don_t_see_each_other() -> None:
    plain = model_of(
        [helper.make_node("Gemm", ["x", "weights", "bias"], ["y"])],
        {"x": (FLOAT, ["R", 24])},
        {"y": (FLOAT, ["R", 8])},
        {"weights": WEIGHTS, "bias": BIAS},
    )
    model, arithmetic = in_integers(plain)
    assert "scale per row" in arithmetic["y"]
    rows = RANDOM.standard_normal((9, 24)).astype(np.float32) * 10.0 ** np.arange(-4, 5)[:, None].astype(np.float32)
    rows[0] = 0
    (together,) = run(model, {"x": rows})
    for index in range(9):
        (alone,) = run(model, {"x": rows[index : index + 1]})
        np.testing.assert_array_equal(alone[0], together[index])
    (expected,) = run(plain, {"x": rows})
    np.testing.assert_allclose(together, expected, rtol=0, atol=0.02 * np.abs(expected).max(1).max())
    np.testing.assert_allclose(together[1], expected[1], atol=0.02)
    np.testing.assert_array_equal(together[0], BIAS)


def test_every_column_has_a_scale_of_its_own() -> None:
    matrix = np.array([[1.0, 1e-3], [-0.5, 5e-4]])
    codes, scales = products.quantized(matrix)
    assert codes.tolist() == [[63, 63], [-32, 32]]
    assert (np.abs(codes * scales - matrix) <= scales * 0.501).all(), "rounded to the nearest code"


WIDTH = 4


def output_layer(size: int, weights: np.ndarray, *, is_gemm: bool = True) -> tuple:
    """Returns an output layer with TopK, plain and by blocks; if not `is_gemm`, as users' modules compute it."""
    product = [helper.make_node("Gemm", ["inputs", "weights", "bias"], ["logits"], transB=1)]
    constants = {"weights": weights, "bias": np.zeros(size, np.float32)}
    if not is_gemm:
        constants = {"weights": weights.T.copy(), "banned": np.arange(size) < 2, "least": np.float32(-1e9)}
        product = [
            helper.make_node("MatMul", ["inputs", "weights"], ["products"]),
            helper.make_node("Where", ["banned", "least", "products"], ["logits"]),
        ]
    plain = model_of(
        [
            *product,
            helper.make_node("LogSoftmax", ["logits"], ["log_probs"]),
            helper.make_node("TopK", ["log_probs", "count"], ["values", "ids"]),
        ],
        {"inputs": (FLOAT, ["R", WIDTH]), "count": (INT64, [1])},
        {"values": (FLOAT, ["R", "K"]), "ids": (INT64, ["R", "K"])},
        constants,
    )
    editor = GraphEditor(plain, "int8")
    products.replace_top(editor)
    return plain, editor.finished().model


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_candidates_by_blocks_equal_those_of_one_search(count: int) -> None:
    random = np.random.default_rng(count)
    # Few distinct values: most candidates are ties.
    weights = random.integers(-1, 2, (products.MIN_VOCABULARY, WIDTH)).astype(np.float32)
    plain, blocks = output_layer(products.MIN_VOCABULARY, weights)
    assert sum(node.op_type == "TopK" for node in blocks.graph.node) == 3
    for rows in (1, 9):
        inputs = {"inputs": random.integers(-2, 3, (rows, WIDTH)).astype(np.float32), "count": np.array([count])}
        for expected, actual in zip(run(plain, inputs), run(blocks, inputs), strict=True):
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("is_gemm", [True, False])
def test_a_vocabulary_that_is_no_multiple_of_a_block_keeps_its_ids(is_gemm: bool) -> None:
    size = products.MIN_VOCABULARY + products.BLOCK // 2 + 1
    random = np.random.default_rng(0)
    plain, blocks = output_layer(size, 20 * random.standard_normal((size, WIDTH)).astype(np.float32), is_gemm=is_gemm)
    # All symbols are requested: the padding of the last block must not be among them.
    inputs = {"inputs": random.standard_normal((3, WIDTH)).astype(np.float32), "count": np.array([size])}
    (values, ids), (found_values, found_ids) = run(plain, inputs), run(blocks, inputs)
    np.testing.assert_array_equal(found_ids, ids)
    np.testing.assert_allclose(found_values, values, rtol=1e-5)


def test_a_small_vocabulary_keeps_its_single_search() -> None:
    plain, blocks = output_layer(products.BLOCK, np.ones((products.BLOCK, WIDTH), np.float32))
    assert list(blocks.graph.node) == list(plain.graph.node)
    assert list(blocks.graph.initializer) == list(plain.graph.initializer)


def test_no_state_is_larger_than_the_calibration_constants() -> None:
    """Covers hosts whose tanh and sigmoid exceed 1 by some units in the last place before they saturate."""
    nodes = [helper.make_node("Tanh", ["x"], ["tanh"]), helper.make_node("Sigmoid", ["x"], ["sigmoid"])]
    outputs = {name: (FLOAT, ["N"]) for name in ("tanh", "sigmoid")}
    model = model_of(nodes, {"x": (FLOAT, ["N"])}, outputs, {})
    first, last = (int(np.float32(bound).view(np.int32)) for bound in (2.0, 32.0))
    floats = np.arange(first, last + 1, dtype=np.int32).view(np.float32)
    constants = np.array([*CALIBRATION_CELLS, CALIBRATION_OUTPUT_GATE], np.float32)
    constant_tanh, constant_sigmoid = run(model, {"x": constants})
    for sign in (np.float32(1), np.float32(-1)):
        tanh, sigmoid = run(model, {"x": sign * floats})
        assert (sign * tanh).max() == (sign * constant_tanh[:-1]).max()
        assert sigmoid.max() <= constant_sigmoid[-1]
