"""Lists of target symbols, and what a batch's step is told of them."""

import numpy as np
import pytest

from runtime import graph_io
from runtime.manifest import ShortlistSpec
from runtime.shortlist import MIN_UNION, UNION_MULTIPLE, Shortlist, ShortlistLayout
from runtime.tokenizer import PAD_ID

VOCABULARY = 500


def shortlist(size: int = 8, num_leading: int = 3) -> Shortlist:
    """Of source symbols 0 to 9: symbol s suggests 20 + s, then 40 + s; 0 to 3 suggest nothing."""
    frequent = np.array([3, 1, 7, 9, 10, 8, 12, 11, *range(13, 300)], np.int32)[:size]
    candidates = np.array([[-1, -1] if s < 4 else [20 + s, 40 + s] for s in range(10)], np.int32)
    return Shortlist(frequent, num_leading, candidates, VOCABULARY)


def naive(made: Shortlist, source: list[int]) -> list[int]:
    """In the words of the docstring."""
    order = [*made.frequent[: made.num_leading].tolist()]
    for rank in range(made.candidates.shape[1]):
        order += [int(made.candidates[symbol, rank]) for symbol in source]
    order = [symbol for symbol in dict.fromkeys([*order, *made.frequent.tolist()]) if symbol >= 0]
    return sorted(order[: made.size])


def test_a_list_has_first_candidates_before_second_ones() -> None:
    (found,) = shortlist().lists([[4, 5, 4, 6, 3]])
    assert found.tolist() == [1, 3, 7, 24, 25, 26, 44, 45]


def test_a_short_source_is_filled_up_with_frequent_symbols() -> None:
    assert shortlist().lists([[3], [4]]).tolist() == [[1, 3, 7, 8, 9, 10, 11, 12], [1, 3, 7, 8, 9, 10, 24, 44]]


def test_lists_of_random_sources_are_what_the_rule_says() -> None:
    random = np.random.default_rng(0)
    made = Shortlist(
        random.permutation(VOCABULARY)[:60].astype(np.int32),
        20,
        random.integers(-1, VOCABULARY, (50, 7)).astype(np.int32),
        VOCABULARY,
    )
    sources = [random.integers(0, 50, length).tolist() for length in random.integers(1, 30, 40)]
    assert made.lists(sources).tolist() == [naive(made, source) for source in sources]


def test_the_file_gives_the_tables_back() -> None:
    made = shortlist()
    spec = ShortlistSpec(file="shortlist.bin", size=8, num_leading=3, num_candidates=2)
    read = Shortlist.from_bytes(made.to_bytes(), spec, 10, VOCABULARY)
    assert read.frequent.tolist() == made.frequent.tolist()
    assert read.candidates.tolist() == made.candidates.tolist()
    with pytest.raises(ValueError, match="112 bytes, its sizes in the manifest make 120"):
        Shortlist.from_bytes(made.to_bytes(), spec, 11, VOCABULARY)
    with pytest.raises(ValueError, match="not 8 distinct symbols and candidates of 45"):
        Shortlist.from_bytes(made.to_bytes(), spec, 10, 45)


def test_a_union_has_every_live_list_and_says_where_it_stands() -> None:
    random = np.random.default_rng(1)
    lists = np.sort([random.choice(VOCABULARY, 60, replace=False) for _ in range(5)])
    layout = ShortlistLayout(VOCABULARY)
    row_sources = np.array([4, 0, 0, 2])
    inputs = layout.inputs(lists, row_sources, None, None)
    union, places = inputs[graph_io.SHORTLIST_UNION], inputs[graph_io.SHORTLIST_PLACES]
    assert len(union) >= MIN_UNION
    assert len(union) % UNION_MULTIPLE == 0
    for source in row_sources:
        assert union[places[source]].tolist() == lists[source].tolist()
    assert (np.diff(union[: len(np.unique(lists[[0, 2, 4]]))]) > 0).all()
    for name in (graph_io.FORCED_PLACES, graph_io.OUTSIDE_PLACES, graph_io.BANNED_PLACES):
        assert (inputs[name] == -1).all()


def test_a_union_is_kept_while_most_sources_stay() -> None:
    lists = np.arange(800).reshape(8, 100) % VOCABULARY
    lists.sort()
    layout = ShortlistLayout(VOCABULARY)
    rows = np.arange(8)
    union = layout.inputs(lists, rows, None, None)[graph_io.SHORTLIST_UNION]
    assert layout.inputs(lists, rows[1:], None, None)[graph_io.SHORTLIST_UNION] is union
    less = layout.inputs(lists, rows[:2], None, None)[graph_io.SHORTLIST_UNION]
    assert np.unique(less).tolist() == list(range(200))
    # A state is a value: who has left may be stepped again.
    assert np.unique(layout.inputs(lists, rows, None, None)[graph_io.SHORTLIST_UNION]).tolist() == list(range(500))
    # The same rows, other sources: a newcomer was written where another one stood.
    other = lists[::-1].copy()
    again = layout.inputs(other, rows[:2], None, None)
    assert again[graph_io.SHORTLIST_UNION][again[graph_io.SHORTLIST_PLACES][0]].tolist() == other[0].tolist()


def test_symbols_are_told_by_their_places_in_the_rows_own_list() -> None:
    lists = np.array([[1, 3, 5], [2, 3, 4]])
    forced = np.array([3, 5, 2, 400, -1])
    banned = np.array([[5, 4], [-1, 3], [2, 2], [1, 400], [-1, -1]])
    inputs = ShortlistLayout(VOCABULARY).inputs(lists, np.array([0, 1, 1, 0, 0]), forced, banned)
    assert inputs[graph_io.FORCED_PLACES].tolist() == [1, -1, 0, -1, -1]
    assert inputs[graph_io.BANNED_PLACES].tolist() == [[2, -1], [-1, 1], [0, 0], [0, -1], [-1, -1]]
    outside, union = inputs[graph_io.OUTSIDE_PLACES], inputs[graph_io.SHORTLIST_UNION]
    assert (outside >= 0).tolist() == [False, True, False, True, False]
    # 5 is beside the list of its row, though in another one's; 400 is banned there, and so as impossible as PAD.
    assert union[outside[[1, 3]]].tolist() == [5, PAD_ID]
    assert len(union) % UNION_MULTIPLE == 0
