"""What a stream is told while its request is decoded: as much as is certain, never more."""

import random

import pytest

from attendant.runtime.decoding.batch import BatchRequest, RunningBatch
from attendant.runtime.decoding.options import DecodingOptions
from tests.fakes import SPECIAL_IDS, FakeStepper
from tests.unit.runtime.naive import naive_progress
from tests.unit.runtime.test_decoding import random_options, random_source

Told = dict[int, list[tuple[int, ...]]]


def translate_os_errors(
    sources: list[list[int]], options: list[DecodingOptions], streams: list[bool], *, spread: float = 2.0
) -> tuple[Told, Told]:
    """By request: what it had been told after each step that it went on after, and the targets that it got."""
    batch = RunningBatch(FakeStepper(8, spread), SPECIAL_IDS)
    waiting, answers = list(range(len(sources))), {}
    told: Told = {key: [] for key in waiting}
    while waiting or batch.keys:
        arriving = [waiting.pop() for _ in range(min(3, len(waiting)))]
        batch.join([BatchRequest(key, sources[key], options[key], streams[key]) for key in arriving])
        report = batch.step()
        for key in batch.keys:
            told[key].append(told[key][-1] if told[key] else ())
        for key, (first, token_ids) in report.progress:
            assert token_ids and first == len(told[key][-1])
            told[key][-1] += token_ids
        answers |= {key: [one.token_ids for one in found] for key, found in report.finished}
    return told, answers


@pytest.mark.parametrize("special", [0.0, 0.3, 0.7], ids=["plain", "some", "many"])
def test_after_each_step_all_is_told_that_every_possible_answer_shares(special: float) -> None:
    """400 random requests of any options that share their steps, against a search that looks at everything anew."""
    rng = random.Random(17)
    sources = [random_source(rng) for _ in range(400)]
    options = [random_options(rng, rng.randrange(1, 5), special) for _ in sources]
    told, answers = translate_os_errors(sources, options, [True] * len(sources), spread=3.0)
    early = 0
    for key, (source, option) in enumerate(zip(sources, options, strict=True)):
        assert told[key] == naive_progress(FakeStepper(8, 3.0), source, option), option
        for certain in told[key]:
            assert answers[key][0][: len(certain)] == certain
            early += bool(certain) and option.beam_size > 1
    assert early > 50


def test_only_who_streams_is_told() -> None:
    rng = random.Random(5)
    sources = [random_source(rng) for _ in range(20)]
    options = [DecodingOptions(max_length=8, beam_size=1 + key % 2) for key in range(20)]
    told, _ = translate_os_errors(sources, options, [key % 3 == 0 for key in range(20)])
    assert {key for key, certain in told.items() if any(certain)} <= {key for key in range(20) if key % 3 == 0}
    assert any(map(any, told.values()))
