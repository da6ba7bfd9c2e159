"""Decoding a whole list: validation, verification and files go through the very batch that serves."""

from collections.abc import Callable, Sequence

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.decoding.batch import BatchRequest, RunningBatch
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.nbest import TextOf
from attendant.runtime.decoding.options import DecodingOptions, scoring_options
from attendant.runtime.stepper import Stepper


def decode_all(
    stepper: Stepper,
    sources: Sequence[Sequence[int]],
    options: DecodingOptions | Sequence[DecodingOptions],
    special_ids: SpecialIds,
    *,
    max_rows: int = 256,
    progress: Callable[[int], None] | None = None,
    text_of: TextOf | None = None,
) -> list[tuple[Hypothesis, ...]]:
    """The hypotheses of every source, in the order given.

    Args:
        sources: ids as the encoder takes them.
        options: for all sources, or one per source.
        max_rows: rows stepped together at most.
        progress: called with the number of sources that have just finished.
        text_of: decodes hypotheses, which are distinct by their text; None: by their tokens.
    """
    each = [options] * len(sources) if isinstance(options, DecodingOptions) else options
    # Longest first: neighbours have like lengths, so little padding, and the stragglers at the end are short.
    waiting = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    batch: RunningBatch[int] = RunningBatch(stepper, special_ids, text_of=text_of)
    results: list[tuple[Hypothesis, ...]] = [()] * len(sources)
    reserved = 0
    while waiting or batch.num_rows:
        # Refill in groups: each join is an encoder run and a copy of the source tensors.
        if waiting and reserved <= max_rows * 3 // 4:
            newcomers = []
            while waiting and (not reserved or reserved + each[waiting[-1]].max_rows <= max_rows):
                index = waiting.pop()
                reserved += each[index].max_rows
                newcomers.append(BatchRequest(index, sources[index], each[index]))
            batch.join(newcomers)
        report = batch.step()
        for index, hypotheses in report.finished:
            results[index] = hypotheses
            reserved -= each[index].max_rows
        if progress is not None and report.finished:
            progress(len(report.finished))
    return results


def score_all(
    stepper: Stepper,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    special_ids: SpecialIds,
    *,
    include_eos: bool = True,
    max_rows: int = 256,
) -> list[Hypothesis]:
    """Log P(target | source) of every (source ids, target ids), as the hypothesis that the target is.

    Raises:
        ValueError: a target is empty, and its end does not count.
    """
    options = [scoring_options(target, special_ids.eos, include_eos=include_eos) for _, target in pairs]
    found = decode_all(stepper, [source for source, _ in pairs], options, special_ids, max_rows=max_rows)
    return [hypotheses[0] for hypotheses in found]
