"""Which sources are encoded together, and how wide: a recurrent layer computes every source to the end of the longest,
and multiplies the inputs of all positions.
"""

from collections.abc import Sequence
from typing import Final

from attendant.runtime.stepper import SOURCE_WIDTH_MULTIPLE, padded_width

CALL_CELLS: Final = 64
"""What another group costs, in cells (sources x positions). The encoder's call alone, which reads its weights anew,
takes as long as some 25 cells; joining the groups takes time too. Of 16, 32 and 64 this gained most under load."""


def alike(lengths: Sequence[int]) -> list[list[int]]:
    """Parts B sources into groups of similar length, whose encodings one after the other cost the least.

    Returns:
        The places of each group's sources, in order. Those of one length are in one group; shorter ones come first.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    ends = [0, *(end for end in range(1, len(order)) if lengths[order[end - 1]] < lengths[order[end]]), len(order)]
    # By how many of the shortest sources are encoded: the least cost of that, and where the last group begins.
    best: dict[int, tuple[int, int]] = {0: (0, 0)}
    for number, end in enumerate(ends[1:], 1):
        longest = lengths[order[end - 1]]
        best[end] = min((best[begin][0] + (end - begin) * longest + CALL_CELLS, begin) for begin in ends[:number])
    groups: list[list[int]] = []
    end = len(order)
    while end:
        begin = best[end][1]
        groups.insert(0, sorted(order[begin:end]))
        end = begin
    return groups


def width_multiple(lengths: Sequence[int]) -> int:
    """Of what the width is to be a multiple in which sources of these lengths are encoded.

    An encoder's results at the valid positions have the same bits at any width (tests/parity). Widening them to what
    the steps need (SOURCE_WIDTH_MULTIPLE) takes time, so a narrower width has to save many cells.
    """
    longest = max(lengths)
    saved = len(lengths) * (padded_width(longest) - longest)
    return 1 if saved >= CALL_CELLS else SOURCE_WIDTH_MULTIPLE
