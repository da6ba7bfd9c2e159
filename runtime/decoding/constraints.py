"""What a beam's options ask of its next step: how many candidates, which bans, and what becomes of its candidates."""

from collections.abc import Sequence
from typing import Any, Final

from attendant.runtime.decoding.candidates import Candidates, repeated_ngram_ends
from attendant.runtime.decoding.history import History
from attendant.runtime.decoding.nbest import Beam
from attendant.runtime.decoding.options import MAX_SAMPLED_CANDIDATES
from attendant.runtime.stepper import NO_ID

EVERY_CANDIDATE: Final = 2**31 - 1
"""As many as the vocabulary has."""


def num_candidates(beam: Beam[Any], rows: range, history: History, num_ordered: int) -> int:
    """Candidates of a row that are looked at in this step, where the search orders `num_ordered` of them.

    Args:
        rows: the beam's.
    """
    options, length = beam.request.options, history.step - beam.request.begin
    num = num_ordered
    if options.completion and any(beam.choice(history, row) is not None for row in rows):
        return EVERY_CANDIDATE
    if options.alternatives and length == len(options.target_prefix):
        num = max(num, options.num_hypotheses)
    if options.sampling is not None:
        num = options.sampling.top_k or MAX_SAMPLED_CANDIDATES
    # Penalized symbols, of which there are no more than tokens, may all have stood before those that come first.
    return num + length if options.repetition_penalty != 1.0 else num


def ngram_bans(beams: Sequence[Beam[Any]], counts: Sequence[int], history: History) -> list[list[int]]:
    """For each row, the symbols that would repeat an n-gram.

    Args:
        counts: rows of each beam.
    """
    bans: list[list[int]] = []
    for beam, count in zip(beams, counts, strict=True):
        size, begin = beam.request.options.no_repeat_ngram_size, beam.request.begin
        looks = size and beam.forced_id(history.step) == NO_ID
        for row in range(len(bans), len(bans) + count):
            looks_here = looks and beam.choice(history, row) is None
            bans.append(repeated_ngram_ends(history.tokens(row, begin), size) if looks_here else [])
    return bans


def change(candidates: Candidates, row: int, beam: Beam[Any], history: History, forced_log_prob: float) -> None:
    """Changes the candidates of one of a beam's rows.

    Args:
        forced_log_prob: of the symbol that the row must take, if it must.
    """
    options, begin = beam.request.options, beam.request.begin
    if (forced := beam.forced_id(history.step)) != NO_ID:
        candidates.force(row, forced, forced_log_prob)
        return
    if (choice := beam.choice(history, row)) is not None:
        candidates.restrict(row, choice.ids)
    elif options.repetition_penalty != 1.0:
        candidates.penalize(row, history.tokens(row, begin), options.repetition_penalty)
    if beam.random is not None and options.sampling is not None:
        candidates.draw(row, options.sampling, beam.random)
    elif options.alternatives and history.step - begin == len(options.target_prefix):
        candidates.choose(row, beam.number)
