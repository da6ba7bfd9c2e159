"""The output layer over lists, run by itself, against the same sums in numpy."""

import numpy as np
import pytest
from onnx import helper

from export.int8.activations import Activations
from export.int8.bounds import Bounds
from export.int8.graph import GraphEditor
from export.shortlist.output import replace_output
from runtime import graph_io
from runtime.shortlist import ShortlistLayout
from tests.unit.export.int8.graphs import FLOAT, INT64, model_of, run

WIDTH, VOCABULARY, SIZE = 8, 300, 40
IMPOSSIBLE = np.float32(-1e9)


def plain(*, bounded: bool) -> tuple:
    """The end of a step: logits, bans, log-probabilities, candidates; as the exporter writes it."""
    random = np.random.default_rng(1)
    weights = random.normal(0, 1, (VOCABULARY, WIDTH)).astype(np.float32)
    bias = random.normal(0, 1, VOCABULARY).astype(np.float32)
    bias[0] = IMPOSSIBLE
    make = helper.make_node
    nodes = [
        make("Tanh" if bounded else "Identity", ["given"], ["joined"]),
        make("Gemm", ["joined", "output.weight", "bias"], ["logits"], transB=1),
        make("Clip", ["banned_ids", "zero"], ["places"]),
        make("Less", ["banned_ids", "zero"], ["none"]),
        make("GatherElements", ["logits", "places"], ["as_is"], axis=1),
        make("Where", ["none", "as_is", "impossible"], ["values"]),
        make("ScatterElements", ["logits", "places", "values"], ["possible"], axis=1, reduction="min"),
        make("LogSoftmax", ["possible"], ["log_probs"]),
        make("Clip", ["forced_ids", "zero"], ["forced"]),
        make("Unsqueeze", ["forced", "last"], ["forced_places_of_all"]),
        make("GatherElements", ["log_probs", "forced_places_of_all"], ["forced_values"], axis=1),
        make("Squeeze", ["forced_values", "last"], ["forced_squeezed"]),
        make("Less", ["forced_ids", "zero"], ["not_forced"]),
        make("Where", ["not_forced", "nothing", "forced_squeezed"], ["forced_log_probs"]),
        make("TopK", ["log_probs", "num_candidates"], ["candidate_log_probs", "candidate_ids"]),
    ]
    model = model_of(
        nodes,
        {
            "given": (FLOAT, ["R", WIDTH]),
            "source_rows": (INT64, ["B", "M"]),
            "row_slots": (INT64, ["R"]),
            "forced_ids": (INT64, ["R"]),
            "banned_ids": (INT64, ["R", "N"]),
            "num_candidates": (INT64, [1]),
        },
        {
            "candidate_log_probs": (FLOAT, ["R", "K"]),
            "candidate_ids": (INT64, ["R", "K"]),
            "forced_log_probs": (FLOAT, ["R"]),
        },
        {
            "output.weight": weights,
            "bias": bias,
            "zero": np.int64(0),
            "last": np.array([1]),
            "impossible": IMPOSSIBLE,
            "nothing": np.float32(0),
        },
    )
    return model, weights, bias


def coded(matrix: np.ndarray, axis: int) -> np.ndarray:
    """The values that codes of a 127th of the largest stand for."""
    step = np.abs(matrix).max(axis, keepdims=True) / 127
    return np.rint(matrix / step) * step


@pytest.mark.parametrize("bounded", [True, False])
def test_a_row_gets_the_log_probabilities_of_its_own_list(bounded: bool) -> None:
    model, weights, bias = plain(bounded=bounded)
    editor = GraphEditor(model)
    done = replace_output(editor, Activations(editor, Bounds(editor)), SIZE)
    editor.finish()
    assert list(done) == ["output.weight"]
    assert "over the 40 symbols of the source's list" in done["output.weight"]
    random = np.random.default_rng(2)
    lists = np.sort([random.choice(np.arange(1, VOCABULARY), SIZE, replace=False) for _ in range(3)])
    row_sources = np.array([0, 0, 2, 1])
    given = random.normal(0, 1, (4, WIDTH)).astype(np.float32)
    in_list, banned = int(lists[0, 5]), int(lists[2, 7])
    outside = int(np.setdiff1d(np.arange(1, VOCABULARY), lists)[0])
    forced_ids = np.array([in_list, outside, -1, outside])
    banned_ids = np.array([[-1, -1], [-1, outside + 0 * banned], [banned, outside], [-1, -1]])
    layout = ShortlistLayout(VOCABULARY).inputs(lists, row_sources, forced_ids, banned_ids)
    inputs = {
        "given": given,
        "source_rows": np.array([[0, 1], [3, 3], [2, 2]]),
        "row_slots": np.array([0, 1, 4, 2]),
        "num_candidates": np.array([SIZE]),
        graph_io.SHORTLIST_IDS: lists,
        **layout,
    }
    log_probs, ids, forced = run(model, inputs)
    joined = np.tanh(given) if bounded else given
    joined = np.rint(joined * 127) / 127 if bounded else coded(joined, 1)
    logits = joined @ coded(weights, 1).T + bias
    for row, source in enumerate(row_sources):
        own = logits[row, lists[source]].astype(np.float64)
        own[np.isin(lists[source], banned_ids[row])] = IMPOSSIBLE
        normalizer = np.logaddexp.reduce(own)
        order = np.lexsort((lists[source], -own))
        assert ids[row].tolist() == lists[source][order].tolist()
        np.testing.assert_allclose(log_probs[row], (own - normalizer)[order], rtol=2e-5, atol=2e-5)
        place = np.flatnonzero(ids[row] == forced_ids[row])
        if len(place):
            assert forced[row] == log_probs[row, place[0]]
    assert forced[1] == pytest.approx(-1e9)  # banned as well
    assert forced[2] == 0
    beside = float(logits[3, outside])
    normalizer = np.logaddexp.reduce(logits[3, lists[1]].astype(np.float64))
    assert forced[3] == pytest.approx(beside - np.logaddexp(normalizer, beside), abs=2e-5)
