"""The candidates found by blocks are TopK's own, bit for bit, ties by the lower id included."""

import numpy as np
import pytest
from onnx import helper

from attendant.export.graph import GraphEditor
from attendant.export.rewriting.products import BLOCK, MIN_VOCABULARY, replace_top
from tests.unit.export.rewriting.graphs import FLOAT, INT64, model_of, run

WIDTH = 4


def output_layer(size: int, weights: np.ndarray) -> tuple:
    """log P of `size` symbols, and the most probable."""
    plain = model_of(
        [
            helper.make_node("Gemm", ["inputs", "weights", "bias"], ["logits"], transB=1),
            helper.make_node("LogSoftmax", ["logits"], ["log_probs"]),
            helper.make_node("TopK", ["log_probs", "count"], ["values", "ids"]),
        ],
        {"inputs": (FLOAT, ["R", WIDTH]), "count": (INT64, [1])},
        {"values": (FLOAT, ["R", "K"]), "ids": (INT64, ["R", "K"])},
        {"weights": weights, "bias": np.zeros(size, np.float32)},
    )
    editor = GraphEditor(plain, "int8")
    replace_top(editor)
    return plain, editor.finished().model


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_the_candidates_are_the_same(count: int) -> None:
    random = np.random.default_rng(count)
    # Few distinct values: most candidates are ties.
    weights = random.integers(-1, 2, (MIN_VOCABULARY, WIDTH)).astype(np.float32)
    plain, blocks = output_layer(MIN_VOCABULARY, weights)
    assert sum(node.op_type == "TopK" for node in blocks.graph.node) == 3
    for rows in (1, 9):
        inputs = {"inputs": random.integers(-2, 3, (rows, WIDTH)).astype(np.float32), "count": np.array([count])}
        for expected, actual in zip(run(plain, inputs), run(blocks, inputs), strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_a_vocabulary_that_is_no_multiple_of_a_block_keeps_its_ids() -> None:
    size = MIN_VOCABULARY + BLOCK // 2 + 1
    random = np.random.default_rng(0)
    plain, blocks = output_layer(size, random.standard_normal((size, WIDTH)).astype(np.float32))
    # All of them: what fills up the last block must not be among them.
    inputs = {"inputs": random.standard_normal((3, WIDTH)).astype(np.float32), "count": np.array([size])}
    (values, ids), (found_values, found_ids) = run(plain, inputs), run(blocks, inputs)
    np.testing.assert_array_equal(found_ids, ids)
    np.testing.assert_allclose(found_values, values, atol=1e-5)


def test_a_small_vocabulary_keeps_its_top() -> None:
    plain, blocks = output_layer(BLOCK, np.ones((BLOCK, WIDTH), np.float32))
    assert list(blocks.graph.node) == list(plain.graph.node)
    assert list(blocks.graph.initializer) == list(plain.graph.initializer)
