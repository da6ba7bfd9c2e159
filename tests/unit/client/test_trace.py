"""Tests of drawing a search as a tree, from traces made by hand."""

import pytest

from attendant_client.command.rendering import draw_trace
from attendant_client.messages import trace_of
from attendant_client.trace import Fate, SearchEnd, Trace


def candidate(token: str, log_prob: float, fate: str, total: float = -1.0) -> dict:
    return {"token": token, "log_prob": log_prob, "total": total, "fate": f"FATE_{fate}"}


def live(token: str, parent: int, *candidates: dict, log_prob: float = -0.5, banned: tuple[str, ...] = ()) -> dict:
    hypothesis = {"token": token, "parent": parent, "log_prob": log_prob, "total": -1.0, "score": -1.0}
    return {**hypothesis, "candidates": candidates, "banned": banned}


def step(*hypotheses: dict, **more: float) -> dict:
    weights = [0.75, 0.25] * len(hypotheses)
    return {"live": hypotheses, "attention": {"rows": len(hypotheses), "columns": 2, "weights": weights}, **more}


SEARCH = {
    "steps": [
        step(live("", 0, candidate("A", -0.1, "LIVES"), candidate("B", -2.5, "LIVES"), candidate("C", -5.0, "RANK"))),
        step(
            live("A", 0, candidate("D", -0.2, "LIVES"), candidate("E", -2.0, "LIVES"), log_prob=-0.1),
            live("B", 0, candidate("D", -0.2, "RANK"), log_prob=-2.5, banned=("</s>",)),
        ),
        step(
            live("D", 0, candidate("</s>", -0.01, "ENDED"), candidate("F", -9.0, "SEARCH_ENDED"), log_prob=-0.2),
            live("E", 0, candidate("G", -0.3, "SEARCH_ENDED"), log_prob=-2.0),
            bound=-0.3,
            best_possible=-1.5,
        ),
    ],
    "ended": [
        {"step": 2, "live": 0, "finish_reason": "FINISH_REASON_EOS", "log_prob": -0.31, "score": -0.3, "hypothesis": 0}
    ],
    "reason": "SEARCH_END_BOUND",
}


def trace(*searches: dict) -> Trace:
    return trace_of({"searches": searches})


def test_the_longest_branch_goes_down_with_the_others_alongside() -> None:
    assert draw_trace(trace(SEARCH)).splitlines() == [
        "3 steps, then no live hypothesis can enter the best: it can reach -1.500, the last of the best has -0.300",
        "├ B 8.2 %",
        "│ ├ too low: D 82 %",
        "│ └ banned: </s>",
        "├ too low: C 0.7 %",
        "A 90 %",
        "├ E 14 %",
        "│ └ the search ended: G 74 %",
        "D 82 %",
        "├ ■ </s> 99 %, score -0.300, answer 1",
        "└ the search ended: F <0.1 %",
    ]


def test_trees_fit_narrow_and_ascii_terminals() -> None:
    lines = draw_trace(trace(SEARCH, SEARCH), width=20, ascii_only=True).splitlines()
    assert max(map(len, lines)) == 20
    assert lines[0] == "search 1 of 2: 3 st~" and "| ` banned: </s>" in lines and "+ * </s> 99 %, scor~" in lines
    assert all(line.isascii() for line in lines)


def test_a_long_greedy_answer_is_not_indented() -> None:
    """Recursion at each step would fail on a long branch, and indentation at each step would make it unreadable."""
    steps = [step(live("", 0, candidate("A", -0.1, "LIVES")))]
    steps += [step(live("A", 0, candidate("A", -0.1, "LIVES"))) for _ in range(2000)]
    steps.append(step(live("A", 0, candidate("B", -0.1, "LENGTH"))))
    end = {"step": 2001, "live": 0, "finish_reason": "FINISH_REASON_LENGTH", "log_prob": -0.31, "score": -0.3}
    long = trace({"steps": steps, "ended": [end], "reason": "SEARCH_END_LENGTH"})
    lines = draw_trace(long).splitlines()
    assert lines[0] == "2002 steps, then the hypotheses had max_length tokens"
    assert lines[-2:] == ["├ ■ cut, score -0.300", "└ too long: B 90 %"] and lines[1000] == "A 61 %"
    assert long.searches[0].tokens(2001, 0) == ("A",) * 2001


def test_unknown_values_of_a_later_server_are_shown() -> None:
    later = {**SEARCH, "steps": [step(live("", 0, {"token": "A", "log_prob": -1.0, "total": -1.0, "fate": 99}))]}
    shown = trace({**later, "ended": [], "reason": 99})
    assert shown.searches[0].reason is SearchEnd.UNSPECIFIED
    assert shown.searches[0].steps[0].live[0].candidates[0].fate is Fate.UNSPECIFIED
    assert "cut: A 37 %" in draw_trace(shown)


def test_coverage_is_the_sum_of_the_rows_on_the_way() -> None:
    (search,) = trace(SEARCH).searches
    assert search.path(2, 1) == ((0, 0), (1, 0), (2, 1)) and search.tokens(2, 1) == ("A", "E")
    assert search.coverage(2, 1) == (2.25, 0.75)
    with pytest.raises(ValueError, match="no attention"):
        trace({**SEARCH, "steps": [{"live": [live("", 0)]}]}).searches[0].coverage(0, 0)
