"""Decoding a whole list: validation, verification and files go through the very batch that serves."""

from collections.abc import Callable, Sequence

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.decoding.batch import BatchRequest, RunningBatch
from attendant.runtime.decoding.beam import BeamSearch
from attendant.runtime.decoding.forced import ForcedSearch
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.decoding.search import Search
from attendant.runtime.stepper import Stepper


def decode_all(
    stepper: Stepper,
    sources: Sequence[Sequence[int]],
    options: DecodingOptions | Sequence[DecodingOptions],
    special_ids: SpecialIds,
    *,
    max_rows: int = 256,
    progress: Callable[[int], None] | None = None,
) -> list[tuple[Hypothesis, ...]]:
    """The hypotheses of every source, in the order given.

    Args:
        options: for all sources, or one per source.
        max_rows: rows stepped together at most.
        progress: called with the number of sources that have just finished.
    """
    each = [options] * len(sources) if isinstance(options, DecodingOptions) else options
    searches = [(BeamSearch.start(option, special_ids), option.beam_size) for option in each]
    return _run(stepper, sources, searches, max_rows, progress)


def score_all(
    stepper: Stepper,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    special_ids: SpecialIds,
    *,
    include_eos: bool = True,
    max_rows: int = 256,
) -> list[Hypothesis]:
    """Log P(target | source) of every (source ids, target ids), as the hypothesis that the target is."""
    starts = [ForcedSearch.start(tuple(target), special_ids, include_eos=include_eos) for _, target in pairs]
    found = _run(stepper, [source for source, _ in pairs], [(search, 1) for search in starts], max_rows, None)
    return [hypotheses[0] for hypotheses in found]


def _run(
    stepper: Stepper,
    sources: Sequence[Sequence[int]],
    searches: Sequence[tuple[Search, int]],
    max_rows: int,
    progress: Callable[[int], None] | None,
) -> list[tuple[Hypothesis, ...]]:
    # Longest first: neighbours have like lengths, so little padding, and the stragglers at the end are short.
    waiting = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    batch: RunningBatch[int] = RunningBatch(stepper)
    results: list[tuple[Hypothesis, ...]] = [()] * len(sources)
    reserved = 0
    while waiting or batch.num_rows:
        # Refill in groups: each join is an encoder run and a copy of the source tensors.
        if waiting and reserved <= max_rows * 3 // 4:
            newcomers = []
            while waiting and (not reserved or reserved + searches[waiting[-1]][1] <= max_rows):
                index = waiting.pop()
                reserved += searches[index][1]
                newcomers.append(BatchRequest(index, sources[index], searches[index][0]))
            batch.join(newcomers)
        report = batch.step()
        for index, hypotheses in report.finished:
            results[index] = hypotheses
            reserved -= searches[index][1]
        if progress is not None and report.finished:
            progress(len(report.finished))
    return results
