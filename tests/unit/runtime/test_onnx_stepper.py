"""Tests of the stepper on ONNX Runtime: states, refused providers and graphs, sources in groups, reused arrays."""

import itertools
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle_stepper import default_precision, open_stepper
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.session import MAX_BINDINGS, MIN_REPEATS, BoundRuns, OnnxSession
from attendant.runtime.onnx.stepper import CALL_CELLS, OnnxStepper, alike, joined, width_multiple
from attendant.runtime.stepper import SOURCE_WIDTH_MULTIPLE, DecoderState, Ids, StepOutput, Taken
from tests.paths import ROOT

SHORT, LONG = [4, 5, 3], [*range(4, 14), *range(4, 12), 3]


def ids(*values: int) -> Ids:
    return np.array(values, np.int64)


def same(state: DecoderState, other: DecoderState) -> bool:
    pairs = [
        *((state.row_tensors[name], other.row_tensors[name]) for name in state.row_tensors),
        *((state.source_tensors[name], other.source_tensors[name]) for name in state.source_tensors),
        (state.source_lengths, other.source_lengths),
        (state.row_sources, other.row_sources),
    ]
    return all(np.array_equal(a, b) for a, b in pairs)


def test_selecting_all_rows_in_order_is_the_same_state(tiny_stepper: OnnxStepper) -> None:
    state = tiny_stepper.encode([SHORT, LONG])
    assert tiny_stepper.select(state, ids(0, 1)) is state


def test_sources_are_shared_not_copied_if_all_are_kept(tiny_stepper: OnnxStepper) -> None:
    state = tiny_stepper.encode([SHORT, LONG])
    selected = tiny_stepper.select(state, ids(1, 0, 1, 1))
    assert selected.source_tensors is state.source_tensors
    assert selected.row_sources.tolist() == [1, 0, 1, 1]
    assert np.array_equal(selected.row_tensors["hidden"][2], state.row_tensors["hidden"][1])


def test_a_source_without_rows_is_removed_with_its_width(tiny_stepper: OnnxStepper) -> None:
    state = tiny_stepper.encode([SHORT, LONG])
    assert state.source_tensors["memory"].shape[:2] == (2, 24)
    assert same(tiny_stepper.select(state, ids(0)), tiny_stepper.encode([SHORT]))


def test_joined_states_equal_the_states_of_a_joint_encoding(tiny_stepper: OnnxStepper) -> None:
    joined = tiny_stepper.concat([tiny_stepper.encode([SHORT]), tiny_stepper.encode([LONG, SHORT])])
    assert same(joined, tiny_stepper.encode([SHORT, LONG, SHORT]))


def test_kept_sources_are_not_copied_when_others_leave_and_join(tiny_stepper: OnnxStepper) -> None:
    many = tiny_stepper.concat([tiny_stepper.encode([LONG] * 6), tiny_stepper.encode([SHORT, LONG])])
    memory = many.source_tensors["memory"]
    stayed = tiny_stepper.select(many, ids(0, 1, 2, 4, 5, 6, 7))
    assert stayed.source_tensors is many.source_tensors
    newcomers = tiny_stepper.encode([SHORT, LONG])
    rejoined = tiny_stepper.concat([Taken(stayed), newcomers])
    assert np.shares_memory(rejoined.source_tensors["memory"], memory)
    assert rejoined.row_sources.tolist() == [0, 1, 2, 4, 5, 6, 7, 3, 8] and rejoined.num_sources == 9
    assert rejoined.source_lengths[[3, 8]].tolist() == newcomers.source_lengths.tolist()
    full = tiny_stepper.concat([Taken(rejoined), tiny_stepper.encode([LONG] * 3)])
    moved = tiny_stepper.concat([Taken(full), tiny_stepper.encode([SHORT])])
    places = [np.shares_memory(state.source_tensors["memory"], memory) for state in (full, moved)]
    assert places == [True, False], "there is room for half as many again as the first 8 sources"


def test_slots_without_rows_do_not_accumulate(tiny_stepper: OnnxStepper) -> None:
    state = tiny_stepper.concat([tiny_stepper.encode([LONG] * 4), tiny_stepper.encode([LONG] * 4)])
    while state.num_rows > 1:
        state = tiny_stepper.select(state, np.arange(1, state.num_rows))
        assert state.num_rows >= 0.75 * state.num_sources
    assert (state.num_rows, state.num_sources) == (1, 1)


def test_steps_over_free_and_used_slots_give_the_same_bits(tiny_stepper: OnnxStepper) -> None:
    """Compares rows of a batch that randomly leave, join and branch with the same rows run alone from the start."""
    rng = np.random.default_rng(4)
    state = tiny_stepper.concat([tiny_stepper.encode([SHORT]), tiny_stepper.encode([LONG])])
    rows: list[tuple[list[int], list[int]]] = [(SHORT, []), (LONG, [])]
    had_free_places = False
    for _ in range(40):
        following = rng.integers(4, 14, len(rows))
        output, state = tiny_stepper.step(Taken(state), following, num_candidates=4, attention=True)
        had_free_places |= len(set(state.row_sources.tolist())) < state.num_sources
        assert output.attention is not None
        for row in rng.choice(len(rows), 2):
            source, history = rows[row]
            expected = alone(tiny_stepper, source, [*history, int(following[row])])
            assert np.array_equal(output.candidate_log_probs[row], expected.candidate_log_probs[0])
            assert np.array_equal(output.candidate_ids[row], expected.candidate_ids[0])
            assert expected.attention is not None
            assert np.array_equal(output.attention[row, : len(source)], expected.attention[0, : len(source)])
        rows = [(source, [*history, int(symbol)]) for (source, history), symbol in zip(rows, following, strict=True)]
        kept = np.sort(rng.choice(len(rows), max(1, int(len(rows) * rng.uniform(0.6, 1.2))), replace=True))
        kept = kept[[len(rows[row][1]) < 8 for row in kept]]
        state, rows = tiny_stepper.select(Taken(state), kept), [rows[row] for row in kept]
        sources = [SHORT + [3] * int(rng.integers(20)) for _ in range(int(rng.integers(1, 4)))]
        newcomers = tiny_stepper.encode(sources)
        state = tiny_stepper.concat([Taken(state), newcomers]) if rows else newcomers
        rows += [(source, []) for source in sources]
    assert had_free_places


def alone(stepper: OnnxStepper, source: list[int], history: list[int]) -> StepOutput:
    state = stepper.encode([source])
    for symbol in history:
        output, state = stepper.step(state, ids(symbol), num_candidates=4, attention=True)
    return output


def test_a_state_that_is_not_transferred_is_never_overwritten(tiny_stepper: OnnxStepper) -> None:
    state = tiny_stepper.encode([SHORT, LONG])
    kept = {name: tensor.copy() for name, tensor in {**state.row_tensors, **state.source_tensors}.items()}
    _, stepped = tiny_stepper.step(state, ids(2, 2), num_candidates=3)
    joined = tiny_stepper.concat([tiny_stepper.select(stepped, ids(1, 1)), state])
    again = tiny_stepper.concat([tiny_stepper.select(joined, ids(0, 2)), tiny_stepper.encode([SHORT])])
    assert not np.shares_memory(again.source_tensors["memory"], joined.source_tensors["memory"])
    for name, tensor in {**state.row_tensors, **state.source_tensors}.items():
        assert np.array_equal(tensor, kept[name])
    assert not np.array_equal(stepped.row_tensors["hidden"], state.row_tensors["hidden"])


def test_attention_is_fetched_only_when_requested(tiny_stepper: OnnxStepper) -> None:
    state = tiny_stepper.encode([SHORT])
    without, _ = tiny_stepper.step(state, ids(2), num_candidates=3)
    output, _ = tiny_stepper.step(state, ids(2), num_candidates=3, attention=True)
    assert without.attention is None
    assert output.attention is not None
    assert output.attention.shape == (1, 8)
    assert output.attention[0, 3:].tolist() == [0.0] * 5
    assert output.attention.sum() == pytest.approx(1.0)


def test_there_are_no_more_candidates_than_symbols(tiny_stepper: OnnxStepper) -> None:
    output, _ = tiny_stepper.step(tiny_stepper.encode([SHORT]), ids(2), num_candidates=1000)
    assert output.candidate_ids.shape == (1, tiny_stepper.vocabulary_size)
    assert sorted(output.candidate_ids[0].tolist()) == list(range(tiny_stepper.vocabulary_size))


def test_an_empty_source_is_refused(tiny_stepper: OnnxStepper) -> None:
    with pytest.raises(ValueError, match="at least one symbol"):
        tiny_stepper.encode([SHORT, []])


def test_a_cuda_session_that_silently_fell_back_is_refused(
    tiny_bundle_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers an onnxruntime that lists a provider, can't load it, and runs on the CPU without an error."""

    class FellBack:
        def __init__(self, *arguments: object, **options: object) -> None:
            os.write(2, b"2026-01-01 [E:onnxruntime] Failed to load libcudart.so.13\n")

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr("onnxruntime.InferenceSession", FellBack)
    bundle = open_bundle(tiny_bundle_path)
    with pytest.raises(UserError, match="provider cuda is not available here: Failed to load libcudart"):
        OnnxSession(bundle.path, bundle.manifest.graphs["fp32"].encoder, provider="cuda", num_threads=1)


def test_a_session_without_its_threads_names_the_remedy(
    tiny_bundle_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*arguments: object, **options: object) -> None:
        raise RuntimeError("env.cc:327 PosixThread pthread_create failed, error code: 11")

    monkeypatch.setattr("onnxruntime.InferenceSession", no_thread)
    with pytest.raises(UserError, match=r"no thread can be started: allow .*ulimit -u"):
        open_stepper(open_bundle(tiny_bundle_path), "fp32", num_threads=2)


def test_int8_graphs_that_can_not_be_read_are_not_called_inexact(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "eight_bits" / "lstm", tmp_path / "lstm")
    bundle = open_bundle(tmp_path / "lstm")
    (tmp_path / "lstm" / "int8" / "encoder.onnx").unlink()
    with pytest.raises(UserError, match=r"encoder\.onnx: can't be read: No such file"):
        open_stepper(bundle, "int8")


def test_int8_of_8_bits_is_refused(tmp_path: Path) -> None:
    bundle = open_bundle(ROOT / "tests" / "eight_bits" / "lstm")
    graphs = {"fp32": bundle.manifest.graphs["int8"], **bundle.manifest.graphs}
    both = replace(bundle, manifest=bundle.manifest.model_copy(update={"graphs": graphs}))
    for opened, remedy in ((bundle, "export its run again"), (both, "choose precision fp32, or export it again")):
        with pytest.raises(UserError, match=f"can't be computed exactly on every processor: .*; {remedy}"):
            open_stepper(opened, "int8")
    assert (default_precision(both, "cpu"), default_precision(bundle, "cpu")) == ("fp32", "int8")
    shutil.copytree(bundle.path, tmp_path / "lstm")
    (tmp_path / "lstm" / "int8" / "encoder.onnx").write_bytes(b"\xff" * 99)
    with pytest.raises(UserError, match="can't be computed exactly"):
        open_stepper(replace(bundle, path=tmp_path / "lstm"), "int8")


LONGER = [*range(4, 14), *range(4, 14), *range(4, 14), *range(4, 12), 3]


def cost(lengths: Sequence[int], groups: Sequence[Sequence[int]]) -> int:
    return sum(len(group) * max(lengths[place] for place in group) + CALL_CELLS for group in groups)


def partitions(places: Sequence[int]) -> Iterator[list[Sequence[int]]]:
    """Yields all ways to cut a sequence into parts."""
    for cuts in itertools.product((False, True), repeat=len(places) - 1):
        edges = [0, *(place for place, cut in enumerate(cuts, 1) if cut), len(places)]
        yield [places[begin:end] for begin, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("seed", range(30))
def test_the_groups_have_the_lowest_cost(seed: int) -> None:
    generator = random.Random(seed)
    lengths = [generator.choice([3, 5, 5, 20, 40, 75]) for _ in range(generator.randint(1, 9))]
    groups = alike(lengths)
    assert sorted(place for group in groups for place in group) == list(range(len(lengths)))
    in_order = sorted(range(len(lengths)), key=lengths.__getitem__)
    assert cost(lengths, groups) == min(cost(lengths, parts) for parts in partitions(in_order))


def test_sources_are_encoded_narrower_if_that_saves_much() -> None:
    assert width_multiple([9] * 10) == width_multiple([2] * 9 + [9]) == 1
    assert width_multiple([9] * 9) == width_multiple([16] * 100) == width_multiple([20]) == SOURCE_WIDTH_MULTIPLE


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 13, 17])
def test_the_width_of_an_encoding_changes_no_bit(
    length: int, tiny_stepper: OnnxStepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [[4] * length, [5, *[6] * (length - 1)], [7]]
    states = []
    for multiple in (1, SOURCE_WIDTH_MULTIPLE, 3 * SOURCE_WIDTH_MULTIPLE):
        monkeypatch.setattr("attendant.runtime.onnx.stepper.width_multiple", lambda lengths, width=multiple: width)
        states.append(tiny_stepper.encode(sources))
    expected, *others = states
    assert expected.source_tensors["memory"].shape[1] == expected.source_width
    for other in others:
        for name, tensor in expected.row_tensors.items():
            assert other.row_tensors[name].tobytes() == tensor.tobytes(), name
        mask = expected.source_tensors["source_mask"][:, :length, None]
        for name in ("memory", "keys"):
            valid = [state.source_tensors[name][:, :length] * mask for state in (expected, other)]
            assert valid[0].tobytes() == valid[1].tobytes(), name


def test_encoding_in_groups_equals_encoding_each_source_alone(tiny_stepper: OnnxStepper) -> None:
    sources = [LONGER, *[SHORT] * 3, LONGER[1:], *[SHORT[1:]] * 5]
    assert len(alike([len(source) for source in sources])) > 1
    together = tiny_stepper.encode(sources)
    assert together.row_sources.tolist() == list(range(len(sources)))
    apart = tiny_stepper.concat([tiny_stepper.encode([source]) for source in sources])
    previous = np.full(len(sources), 2, np.int64)
    for _ in range(3):
        (actual, together), (expected, apart) = (
            tiny_stepper.step(Taken(state), previous, num_candidates=4, attention=True) for state in (together, apart)
        )
        assert np.array_equal(actual.candidate_ids, expected.candidate_ids)
        assert np.array_equal(actual.candidate_log_probs, expected.candidate_log_probs)
        assert np.array_equal(actual.attention, expected.attention)
        previous = actual.candidate_ids[:, 1].copy()


Array = np.ndarray[Any, Any]


@pytest.fixture
def runs() -> BoundRuns:
    """Returns runs of a graph that doubles: y = 2 x, z = 2 n."""
    values = {"x": TensorProto.FLOAT, "n": TensorProto.INT64, "y": TensorProto.FLOAT, "z": TensorProto.INT64}
    x, n, y, z = (helper.make_tensor_value_info(name, kind, [name]) for name, kind in values.items())
    nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Add", ["n", "n"], ["z"])]
    model = helper.make_model(
        helper.make_graph(nodes, "double", [x, n], [y, z]), opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return BoundRuns(session, {"y": "float32", "z": "int64"}, copied=["n"])


def double(runs: BoundRuns, x: Array, n: int) -> Array:
    y, z = runs.run({"y": x.shape, "z": (1,)}, {"x": x, "n": np.array([n])})
    assert z.tolist() == [2 * n]
    return y


def warm_up(runs: BoundRuns, x: Array) -> None:
    """Runs these shapes until the next run binds them."""
    for _ in range(MIN_REPEATS):
        double(runs, x, 0)


def test_arrays_that_are_not_released_are_not_overwritten(runs: BoundRuns) -> None:
    x = np.array([1, 2, 3], np.float32)
    held = [double(runs, x + number, number) for number in range(3 * MAX_BINDINGS + MIN_REPEATS)]
    assert [array.tolist() for array in held] == [
        (2 * (x + number)).tolist() for number in range(3 * MAX_BINDINGS + MIN_REPEATS)
    ]


def test_a_chain_of_runs_alternates_between_two_arrays(runs: BoundRuns) -> None:
    x = np.ones(3, np.float32)
    warm_up(runs, x)
    places = []
    for number in range(8):
        y = double(runs, x, number)
        runs.release(x)
        x = y
        places.append(x.ctypes.data)
    assert x.tolist() == [256] * 3
    assert len(set(places[4:])) == 2


def test_a_new_array_at_a_freed_arrays_address_is_read(runs: BoundRuns) -> None:
    for number in range(50):
        # A small array gets the memory, and the identity, of one that was just freed.
        y = double(runs, np.full(3, number, np.float32), number)
        assert y.tolist() == [2 * number] * 3
        runs.release(y)


def test_alternating_shapes_have_correct_results(runs: BoundRuns) -> None:
    for number in range(4 * MAX_BINDINGS * (MIN_REPEATS + 2)):
        size = 1 + number // (MIN_REPEATS + 2) % (MAX_BINDINGS + 2)
        y = double(runs, np.full(size, number, np.float32), number)
        assert y.tolist() == [2 * number] * size
        runs.release(y)


def test_a_transferred_state_is_stepped_in_place_to_the_same_bits(tiny_stepper: OnnxStepper) -> None:
    sources, ids = [[4, 5, 3], [6, 7, 8, 9]], np.array([2, 2])
    state, reused = tiny_stepper.encode(sources), tiny_stepper.encode(sources)
    places = set()
    for _ in range(MIN_REPEATS + 6):
        expected, state = tiny_stepper.step(state, ids, num_candidates=2)
        output, reused = tiny_stepper.step(Taken(reused), ids, num_candidates=2)
        ids = expected.candidate_ids[:, 0]
        assert np.array_equal(output.candidate_log_probs, expected.candidate_log_probs)
        for name, tensor in state.row_tensors.items():
            assert np.array_equal(reused.row_tensors[name], tensor)
        places.add(reused.row_tensors["hidden"].ctypes.data)
    assert len(places) <= MIN_REPEATS + 2, "after the first runs, two arrays take turns"


def test_a_kept_state_is_never_changed_by_later_steps(tiny_stepper: OnnxStepper) -> None:
    state = tiny_stepper.encode([[4, 5, 3], [6, 7, 8, 9]])
    ids = np.array([2, 2])
    states, outputs = [state], []
    for _ in range(MIN_REPEATS + 4):
        output, state = tiny_stepper.step(state, ids, num_candidates=2)
        ids = output.candidate_ids[:, 0]
        states.append(state)
        outputs.append(output)
    copies = [{name: tensor.copy() for name, tensor in kept.row_tensors.items()} for kept in states]
    ids = np.array([2, 2])
    for place, before in enumerate(outputs):
        again, after = tiny_stepper.step(states[place], ids, num_candidates=2)
        ids = before.candidate_ids[:, 0]
        assert np.array_equal(again.candidate_log_probs, before.candidate_log_probs)
        for name, tensor in copies[place + 1].items():
            assert np.array_equal(after.row_tensors[name], tensor)
            assert np.array_equal(states[place + 1].row_tensors[name], tensor)


def test_a_reordering_beam_reuses_arrays_with_the_same_bits(tiny_stepper: OnnxStepper) -> None:
    sources, ids, rows = [[4, 5, 3]], np.array([2, 2, 2]), np.array([2, 0, 0])
    state = tiny_stepper.select(tiny_stepper.encode(sources), np.zeros(3, np.int64))
    reused = tiny_stepper.select(tiny_stepper.encode(sources), np.zeros(3, np.int64))
    places = set()
    for _ in range(8):
        expected, state = tiny_stepper.step(state, ids, num_candidates=2)
        output, reused = tiny_stepper.step(Taken(reused), ids, num_candidates=2)
        assert np.array_equal(output.candidate_log_probs, expected.candidate_log_probs)
        ids = expected.candidate_ids[:, 0] + np.arange(3) % 2
        state, reused = tiny_stepper.select(state, rows), tiny_stepper.select(Taken(reused), rows)
        for name, tensor in state.row_tensors.items():
            assert np.array_equal(reused.row_tensors[name], tensor)
        places.add(reused.row_tensors["hidden"].ctypes.data)
    assert len(places) == 1, "reordered rows are written to the same arrays each time"


def test_joining_pads_and_cuts_positions() -> None:
    narrow, wide = np.ones((1, 2)), np.full((2, 4), 2.0)
    assert joined([narrow, wide], 1, 3).tolist() == [[1, 1, 0], [2, 2, 2], [2, 2, 2]]
    assert joined([narrow, narrow], None, 7).tolist() == [[1, 1], [1, 1]]
