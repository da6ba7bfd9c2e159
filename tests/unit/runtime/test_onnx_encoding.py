"""Sources of unlike lengths are encoded apart, and nothing but time tells that they were."""

import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from attendant.runtime.onnx.stepper import CALL_CELLS, OnnxStepper, alike, width_multiple
from attendant.runtime.stepper import SOURCE_WIDTH_MULTIPLE, Taken

SHORT, LONG = [4, 5, 3], [*range(4, 14), *range(4, 14), *range(4, 14), *range(4, 12), 3]


def cost(lengths: Sequence[int], groups: Sequence[Sequence[int]]) -> int:
    return sum(len(group) * max(lengths[place] for place in group) + CALL_CELLS for group in groups)


def partitions(places: Sequence[int]) -> Iterator[list[Sequence[int]]]:
    """All ways to cut a sequence into parts."""
    for cuts in itertools.product((False, True), repeat=len(places) - 1):
        edges = [0, *(place for place, cut in enumerate(cuts, 1) if cut), len(places)]
        yield [places[begin:end] for begin, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("seed", range(30))
def test_no_other_groups_cost_less(seed: int) -> None:
    generator = random.Random(seed)
    lengths = [generator.choice([3, 5, 5, 20, 40, 75]) for _ in range(generator.randint(1, 9))]
    groups = alike(lengths)
    assert sorted(place for group in groups for place in group) == list(range(len(lengths)))
    in_order = sorted(range(len(lengths)), key=lengths.__getitem__)
    assert cost(lengths, groups) == min(cost(lengths, parts) for parts in partitions(in_order))


def test_what_is_alike_stays_together() -> None:
    assert alike([20] * 5) == [[0, 1, 2, 3, 4]]
    assert alike([20, 22, 21]) == [[0, 1, 2]]
    assert alike([7, 75, 7, 7, 70]) == [[0, 2, 3], [1, 4]]


def test_sources_are_encoded_narrower_where_that_saves_much() -> None:
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


def test_an_encoding_in_groups_is_that_of_each_source_alone(tiny_stepper: OnnxStepper) -> None:
    sources = [LONG, *[SHORT] * 3, LONG[1:], *[SHORT[1:]] * 5]
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
