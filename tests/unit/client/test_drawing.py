"""Tests of computations and drawings from an answer: links, perplexities, maps of attention, trees of searches."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attendant_client import FinishReason, Generation, Hypothesis, Score, Timings
from attendant_client.alignment import as_text, links
from attendant_client.attention_map import draw, draw_weights
from attendant_client.command.rendering import draw_trace, score_as_json
from attendant_client.messages import trace_of
from attendant_client.trace import Fate, SearchEnd, Trace

WEIGHTS = ((0.7, 0.2, 0.1), (0.1, 0.3, 0.6), (0.4, 0.4, 0.2), (0.0, 0.1, 0.9))
SCORE = Score(
    request_id="",
    model="m",
    version="v",
    log_prob=-3.0,
    source_tokens=("a", "b", "</s>"),
    target_tokens=("X", "Y", "Z"),
    token_log_probs=(-0.5, -0.5, -1.5, -0.5),
    attention=WEIGHTS,
)
DRAWN = ((0.75, 0.25, 0.0), (0.05, 0.45, 0.5), (0.02, 0.02, 0.96))


def generation(
    attention: Any, tokens: tuple[str, ...] = ("HH", "AY"), source_tokens: tuple[str, ...] = ("h", "i", "</s>")
) -> Generation:
    hypothesis = Hypothesis(
        text="".join(tokens),
        tokens=tokens,
        score=-1.0,
        log_prob=-3.0,
        token_log_probs=(),
        attention=attention,
        finish_reason=FinishReason.EOS,
    )
    timings = Timings(queue_seconds=0, encode_seconds=0, decode_seconds=0, total_seconds=0, steps=3, mean_batch_rows=1)
    return Generation(
        request_id="", model="m", version="v", hypotheses=(hypothesis,), source_tokens=source_tokens, timings=timings
    )


def test_each_target_token_has_the_source_token_that_it_looked_at_most() -> None:
    pairs = links(SCORE)
    assert pairs == ((0, 0), (0, 2)), "Y looked at the source's end; of equal weights the first counts"
    assert as_text(pairs) == "0-0 0-2" and as_text(()) == ""
    # The library's answers have arrays.
    answer = generation(np.array(WEIGHTS), SCORE.target_tokens, SCORE.source_tokens)
    several = replace(answer, hypotheses=(replace(answer.best, attention=None), answer.best))
    assert links(several, hypothesis=1) == pairs
    without_end = replace(SCORE, source_tokens=("a", "b", "c"))
    assert links(without_end) == ((0, 0), (2, 1), (0, 2))
    of_parts = replace(SCORE, source_tokens=("</s>", "b", "c"))
    assert links(of_parts) == ((2, 1),)


def test_a_score_has_perplexities_per_token_and_word() -> None:
    assert SCORE.perplexity == pytest.approx(np.exp(np.mean([0.5, 0.5, 1.5, 0.5])))
    assert SCORE.word_perplexity("X YZ") == pytest.approx(np.exp(3.0 / 3))
    without_end = replace(SCORE, token_log_probs=SCORE.token_log_probs[:3], log_prob=-2.5)
    assert without_end.word_perplexity("X YZ") == pytest.approx(np.exp(2.5 / 2))
    assert replace(SCORE, log_prob=-3000.0).word_perplexity("XYZ") == np.inf, "a long word that is improbable"
    assert json.loads(score_as_json(replace(SCORE, log_prob=-3000.0)))["perplexity"] is None, "JSON has no infinity"


def test_rows_are_target_tokens_and_columns_source_tokens() -> None:
    assert draw(generation(DRAWN)).splitlines() == [
        "         <",
        "         /",
        "         s",
        "     h i >",
        "  HH ██▒▒·",
        "  AY ░░▓▓▓▓",
        "</s> · · ██",
        "",
        "     at least: ░░ 5%  ▒▒ 20%  ▓▓ 40%  ██ 70%",
    ]
    score = replace(SCORE, source_tokens=("h", "i", "</s>"), target_tokens=("HH", "AY"), attention=DRAWN)
    assert draw(score) == draw(generation(DRAWN))


@pytest.mark.parametrize("show", [draw, links])
def test_no_attention_is_a_clear_error(show: Any) -> None:
    with pytest.raises(ValueError, match="attention=True"):
        show(generation(None))


def test_a_wide_map_is_drawn_in_parts() -> None:
    weights = [[1.0] * 10]
    drawing = draw_weights(weights, list("abcdefghij"), ["X"], width=10)
    maps = drawing.split("\n\n")[:-1]
    assert [part.splitlines()[0] for part in maps] == ["  a b c d", "  e f g h", "  i j"]
    assert [part.splitlines()[1] for part in maps] == ["X " + "██" * 4, "X " + "██" * 4, "X " + "██" * 2]
    assert len(draw_weights(weights, list("abcdefghij"), ["X"], width=1).split("\n\n")) == 11


def test_tokens_of_every_script_keep_the_columns_aligned() -> None:
    lines = draw_weights([[1.0, 0.0], [0.0, 1.0]], ["東", "e\u0301"], ["京", "x"]).splitlines()
    assert lines[0] == "   東e\u0301"
    assert lines[1] == "京 ██·"
    assert lines[2] == " x · ██"


def test_invisible_characters_are_shown_and_long_tokens_are_cut() -> None:
    lines = draw_weights([[1.0, 0.0, 0.0]], ["\x1b", " ", ""], ["\n" + "y" * 30]).splitlines()
    assert lines[0].split() == ["?", "_", "?"]
    assert lines[1].startswith("?" + "y" * 18 + "~ ")
    headings = draw_weights([[1.0]], ["x" * 30], ["y"]).splitlines()
    assert [line.strip() for line in headings[:12]] == [*"x" * 11, "~"]


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
