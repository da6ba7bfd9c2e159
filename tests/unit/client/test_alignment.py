"""Hard links of attention, and the perplexities of a score."""

from dataclasses import replace

import numpy as np
import pytest

from attendant_client import FinishReason, Generation, Hypothesis, Score, Timings
from attendant_client.alignment import as_text, links

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


def generation(attention: object) -> Generation:
    hypothesis = Hypothesis(
        text="XYZ",
        tokens=SCORE.target_tokens,
        score=-1.0,
        log_prob=-3.0,
        token_log_probs=(),
        attention=attention,  # type: ignore[arg-type]
        finish_reason=FinishReason.EOS,
    )
    timings = Timings(queue_seconds=0, encode_seconds=0, decode_seconds=0, total_seconds=0, steps=4, mean_batch_rows=1)
    return Generation(
        request_id="",
        model="m",
        version="v",
        hypotheses=(replace(hypothesis, attention=None), hypothesis),
        source_tokens=SCORE.source_tokens,
        timings=timings,
    )


def test_each_target_token_has_the_source_token_that_it_looked_at_most() -> None:
    found = links(SCORE)
    assert found == ((0, 0), (0, 2)), "Y looked at the source's end; of equal weights the first counts"
    assert as_text(found) == "0-0 0-2" and as_text(()) == ""
    # The library's answers have arrays.
    assert links(generation(np.array(WEIGHTS)), hypothesis=1) == found
    without_end = replace(SCORE, source_tokens=("a", "b", "c"))
    assert links(without_end) == ((0, 0), (2, 1), (0, 2))


def test_without_attention_there_are_no_links() -> None:
    with pytest.raises(ValueError, match="attention=True"):
        links(generation(WEIGHTS))


def test_perplexities_of_a_score() -> None:
    assert SCORE.perplexity == pytest.approx(np.exp(np.mean([0.5, 0.5, 1.5, 0.5])))
    assert SCORE.word_perplexity("X YZ") == pytest.approx(np.exp(3.0 / 3))
    without_end = replace(SCORE, token_log_probs=SCORE.token_log_probs[:3], log_prob=-2.5)
    assert without_end.word_perplexity("X YZ") == pytest.approx(np.exp(2.5 / 2))
