"""Tests of traces against a naive search that runs every prefix from the start and records its steps."""

import pickle
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from attendant.runtime.decoding.batch import BatchRequest, RunningBatch
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.options import Choice, DecodingOptions, Sampling
from attendant.runtime.decoding.trace import Fate, SearchEnd, Trace, TracedSearch
from tests.fakes import SPECIAL_IDS, FakeStepper
from tests.unit.runtime.naive import Ended, Live, Searched, Step, answer_of, naive_searches
from tests.unit.runtime.test_decoding import assert_same, random_options, random_source, short_text


def decoded(
    stepper: FakeStepper,
    sources: Sequence[Sequence[int]],
    options: Sequence[DecodingOptions],
    text_of=None,
    together: int = 16,
) -> tuple[dict[int, tuple[Hypothesis, ...]], dict[int, Trace]]:
    """Returns the answers and traces of requests that join a few at a time and share their steps."""
    batch = RunningBatch(stepper, SPECIAL_IDS, text_of=text_of)
    waiting, answers, traces = list(range(len(sources))), {}, {}
    while waiting or batch.keys:
        arriving = [waiting.pop() for _ in range(min(3, len(waiting), max(0, together - len(batch.keys))))]
        batch.join([BatchRequest(key, sources[key], options[key]) for key in arriving])
        report = batch.step()
        answers |= dict(report.finished)
        traces |= report.traces
        assert report.traces.keys() <= {key for key, _ in report.finished}
    return answers, traces


def unfolded(search: TracedSearch) -> list[Step]:
    """Returns the steps in the naive search's format."""
    steps, live, candidate = [], 0, 0
    for number, bound, best in zip(search.num_live, search.bounds, search.best_possible, strict=True):
        rows = []
        for place in range(live, live + number):
            end = candidate + search.num_candidates[place]
            columns = (
                search.candidate_ids,
                search.candidate_log_probs,
                search.candidate_totals,
                map(Fate, search.fates.tolist()),
            )
            candidates = list(zip(*columns, strict=True))[candidate:end]
            assert search.attention is not None and search.attention[place].sum() == 1
            rows.append(
                Live(
                    int(search.parents[place]),
                    int(search.token_ids[place]),
                    float(search.log_probs[place]),
                    float(search.totals[place]),
                    float(search.scores[place]),
                    int(search.attention[place].argmax()),
                    search.banned[place],
                    [
                        (int(s), float(p), pytest.approx(float(t), rel=1e-12, abs=1e-12), fate)
                        for s, p, t, fate in candidates
                    ],
                )
            )
            candidate = end
        live += number
        steps.append(
            Step(
                [replace(row, total=pytest.approx(row.total), score=pytest.approx(row.score)) for row in rows],
                None if np.isnan(bound) else pytest.approx(bound),
                None if np.isnan(best) else pytest.approx(best),
            )
        )
    assert (live, candidate) == (len(search.parents), len(search.fates))
    return steps


def assert_naive(trace: Trace, searches: Sequence[Searched], answer: Sequence[Ended], options: DecodingOptions) -> None:
    assert len(trace) == len(searches)
    for search, expected in zip(trace, searches, strict=True):
        assert unfolded(search) == expected.steps
        assert SearchEnd(search.reason) is expected.reason(options)
        places = {id(hypothesis): place for place, hypothesis in enumerate(answer)}
        assert [(e.step, e.live, e.ended_by_eos, e.hypothesis) for e in search.ended] == [
            (step, live, hypothesis.ended, places.get(id(hypothesis))) for step, live, hypothesis in expected.ends
        ]
        assert [e.score for e in search.ended] == pytest.approx(
            [hypothesis.score for *_, hypothesis in expected.ends], rel=1e-9
        )
        assert [e.log_prob for e in search.ended] == pytest.approx(
            [sum(hypothesis.log_probs) for *_, hypothesis in expected.ends], rel=1e-12
        )


@pytest.mark.parametrize("special", [0.0, 0.3, 0.7], ids=["plain", "some", "many"])
def test_a_trace_equals_the_steps_of_a_naive_search(special: float) -> None:
    """Compares 300 random requests that share their steps; most are traced."""
    rng = random.Random(7)
    stepper = FakeStepper(vocabulary_size=8)
    sources = [random_source(rng) for _ in range(300)]
    options = [
        replace(random_options(rng, rng.randrange(1, 5), special), trace=rng.choice([0, 1, 3, 8, 20])) for _ in sources
    ]
    answers, traces = decoded(stepper, sources, options)
    assert traces.keys() == {key for key, option in enumerate(options) if option.trace}
    fates, reasons = set(), set()
    for key, trace in traces.items():
        searches = naive_searches(stepper, sources[key], options[key])
        assert_naive(trace, searches, answer_of(searches, options[key]), options[key])
        fates |= {fate for search in trace for fate in search.fates.tolist()}
        reasons |= {search.reason for search in trace}
    assert fates == (set(Fate) if special else set(Fate) - {Fate.PREFIX, Fate.NOT_DRAWN, Fate.ALTERNATIVE})
    assert reasons == (
        set(SearchEnd) if special > 0.3 else set(SearchEnd) - {SearchEnd.BANS} | (reasons & {SearchEnd.BANS})
    )
    without, _ = decoded(stepper, sources, [replace(option, trace=0) for option in options])
    for key, hypotheses in answers.items():
        assert_same(hypotheses, without[key])


def test_the_trace_shows_which_hypothesis_of_equal_text_was_kept() -> None:
    rng = random.Random(9)
    stepper = FakeStepper(vocabulary_size=8)
    sources = [random_source(rng) for _ in range(60)]
    options = [replace(random_options(rng, rng.randrange(2, 6), 0.2), trace=4) for _ in sources]
    _, traces = decoded(stepper, sources, options, short_text)
    num_dropped = 0
    for key, trace in traces.items():
        searches = naive_searches(stepper, sources[key], options[key], short_text)
        assert_naive(trace, searches, answer_of(searches, options[key], short_text), options[key])
        num_dropped += sum(end.hypothesis is None for search in trace for end in search.ended)
    assert num_dropped > 25


def test_a_trace_survives_the_way_between_processes_and_is_small() -> None:
    options = DecodingOptions(beam_size=4, num_hypotheses=2, max_length=40, min_length=40, trace=5)
    _, traces = decoded(FakeStepper(vocabulary_size=30), [[5] * 20], [options])
    (search,) = traces[0]
    assert len(search.num_live) == 41
    pickled = pickle.dumps(search)
    # About 41 x 4 live hypotheses, each with 20 attention weights and 5 or 6 candidates.
    assert len(pickled) < 41 * 4 * (20 * 4 + 6 * 8 + 6 * 25) * 1.3
    again = pickle.loads(pickled)
    assert unfolded(again) == unfolded(search) and again.ended == search.ended


def test_a_draw_takes_the_same_candidates_in_every_batch() -> None:
    """Covers a draw batched with a request that completes a word and so needs every symbol of the vocabulary."""
    stepper = FakeStepper(vocabulary_size=3000, spread=0.1)
    drawn = DecodingOptions(max_length=12, min_length=12, sampling=Sampling(seed=3))
    completing = DecodingOptions(max_length=12, completion=(Choice((), np.array([7, 8], np.int32).tobytes()),) * 12)
    alone, _ = decoded(stepper, [[5]], [drawn])
    alongside, _ = decoded(stepper, [[5], [6]], [drawn, completing])
    assert alongside[0] == alone[0]
