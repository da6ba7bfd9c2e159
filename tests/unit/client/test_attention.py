"""Tests of answers' attention: hard links, and drawings cell by cell; and of a score's perplexities."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attendant_client import FinishReason, Generation, Hypothesis, Score, Timings
from attendant_client.alignment import as_text, links
from attendant_client.attention_map import draw, draw_weights

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


def test_a_score_has_perplexities_per_token_and_word() -> None:
    assert SCORE.perplexity == pytest.approx(np.exp(np.mean([0.5, 0.5, 1.5, 0.5])))
    assert SCORE.word_perplexity("X YZ") == pytest.approx(np.exp(3.0 / 3))
    without_end = replace(SCORE, token_log_probs=SCORE.token_log_probs[:3], log_prob=-2.5)
    assert without_end.word_perplexity("X YZ") == pytest.approx(np.exp(2.5 / 2))
    assert replace(SCORE, log_prob=-3000.0).word_perplexity("XYZ") == np.inf, "a long word that is improbable"


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


def test_a_score_is_drawn_in_the_same_way() -> None:
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
