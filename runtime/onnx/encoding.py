"""Which sources are encoded together: a recurrent layer computes every source to the end of the longest."""

from collections.abc import Sequence
from typing import Final

CALL_CELLS: Final = 32
"""What a call of the encoder costs beside its cells (sources x positions), in cells: weights are read, kernels are
started. Fitted to encodings between steps, as a server has them."""


def alike(lengths: Sequence[int]) -> list[list[int]]:
    """Parts B sources into groups of similar length, whose encodings one after the other cost the least.

    Returns:
        The places of each group's sources. Those of one length are in one group, in order; shorter ones come first.
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
        groups.insert(0, order[begin:end])
        end = begin
    return groups
