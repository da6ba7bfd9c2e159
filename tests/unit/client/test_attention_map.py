"""The drawing, cell by cell."""

import pytest

from attendant_client import FinishReason, Generation, Hypothesis, Score, Timings
from attendant_client.attention_map import draw, draw_weights

WEIGHTS = ((0.75, 0.25, 0.0), (0.05, 0.45, 0.5), (0.02, 0.02, 0.96))
TIMINGS = Timings(queue_seconds=0, encode_seconds=0, decode_seconds=0, total_seconds=0, steps=3, mean_batch_rows=1)


def generation(weights: tuple[tuple[float, ...], ...] | None) -> Generation:
    hypothesis = Hypothesis(
        text="HH AY",
        tokens=("HH", "AY"),
        score=0,
        log_prob=0,
        token_log_probs=(),
        attention=weights,
        finish_reason=FinishReason.EOS,
    )
    return Generation(
        request_id="", model="", version="", hypotheses=(hypothesis,), source_tokens=("h", "i", "</s>"), timings=TIMINGS
    )


def test_rows_are_target_tokens_and_columns_source_tokens() -> None:
    assert draw(generation(WEIGHTS)).splitlines() == [
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


def test_ascii() -> None:
    drawing = draw(generation(WEIGHTS), ascii_only=True)
    assert drawing.isascii()
    assert drawing.splitlines()[4:7] == ["  HH ##++.", "  AY --%%%%", "</s> . . ##"]


def test_a_score_is_drawn_likewise() -> None:
    score = Score(
        request_id="",
        model="",
        version="",
        log_prob=0,
        source_tokens=("h", "i", "</s>"),
        target_tokens=("HH", "AY"),
        token_log_probs=(0, 0, 0),
        attention=WEIGHTS,
    )
    assert draw(score) == draw(generation(WEIGHTS))


def test_a_hypothesis_that_was_cut_has_no_row_for_its_end() -> None:
    lines = draw(generation(WEIGHTS[:2])).splitlines()
    assert [line[:2] for line in lines[4:6]] == ["HH", "AY"]
    assert not any("</s>" in line for line in lines)


def test_no_attention_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="ask for them with attention=True"):
        draw(generation(None))


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


def test_what_can_not_be_seen_is_shown_and_what_is_long_is_cut() -> None:
    lines = draw_weights([[1.0, 0.0, 0.0]], ["\x1b", " ", ""], ["\n" + "y" * 30]).splitlines()
    assert lines[0].split() == ["?", "_", "?"]
    assert lines[1].startswith("?" + "y" * 18 + "~ ")
    headings = draw_weights([[1.0]], ["x" * 30], ["y"]).splitlines()
    assert [line.strip() for line in headings[:12]] == [*"x" * 11, "~"]
