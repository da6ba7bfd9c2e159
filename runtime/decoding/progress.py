"""Which tokens of an answer are certain before it has ended: those that all hypotheses share that can still be it."""

import math
from collections.abc import Sequence
from typing import Any

from attendant.runtime.decoding.history import History
from attendant.runtime.decoding.hypothesis import Progress
from attendant.runtime.decoding.nbest import Beam


def progress_of(
    beams: Sequence[Beam[Any]], rows: Sequence[range], sums: Sequence[float], history: History
) -> Progress | None:
    """What has become certain of a request's best hypothesis since this was last asked; None: nothing.

    A live hypothesis can still be the best if the score that it can reach is no less than that of the best ended one.

    Args:
        beams: those of the request that have not ended.
        rows: of each of them.
        sums: by row, what the hypothesis there is ranked by, before it is divided by the length penalty.
    """
    request = beams[0].request
    told, prefix = request.num_told, request.options.target_prefix
    if not told and prefix:
        certain = prefix
    else:
        ended = [*request.found, *(one for beam in beams for one in beam.ended)]
        best = max([one.score for one in ended], default=-math.inf)
        rivals = [one.token_ids[told:] for one in ended if one.score == best]
        for beam, of_beam in zip(beams, rows, strict=True):
            able = [row for row in of_beam if beam.best_possible(sums[row]) >= best]
            rivals += [tuple(history.tokens(row, request.begin + told)) for row in able]
        certain = _shared(rivals)
    request.num_told += len(certain)
    return Progress(told, certain) if certain else None


def _shared(sequences: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The longest common prefix."""
    # What the first and the last one in order share, all between them share too.
    one, other = min(sequences), max(sequences)
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return one[:place]
    return one
