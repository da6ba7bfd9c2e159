"""How many decoder steps a request will take, learned from those that were answered. Pure."""

from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.stepper import padded_width

MEMORY = 64
"""Answers that a mean is made of, about: older ones fade."""


class Lengths:
    """Mean steps of a model's answers, by padded source width and beam size.

    Where there is no answer of that width and beam size yet, the steps are estimated from the mean ratio of steps to
    source positions, which begins at 1.
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[int, int], float] = {}
        self._steps_per_position = 1.0

    def expected(self, num_positions: int, options: DecodingOptions) -> float:
        """Steps of a source of so many positions, from 1 up."""
        if options.scores_prefix:
            return float(len(options.target_prefix))
        known = self._steps.get(_kind(num_positions, options))
        steps = self._steps_per_position * num_positions if known is None else known
        # The last step decides whether it ends.
        return min(max(steps, options.min_length + 1), options.max_length + 1)

    def note(self, num_positions: int, options: DecodingOptions, num_steps: int) -> None:
        """A request was answered after so many steps."""
        if options.scores_prefix or options.min_length >= num_steps - 1:
            return  # its caller has said how long it is
        kind = _kind(num_positions, options)
        known = self._steps.get(kind)
        if num_steps > options.max_length and known is not None and known > num_steps:
            return  # cut: it would have been longer
        self._steps[kind] = num_steps if known is None else known + (num_steps - known) / MEMORY
        ratio = num_steps / num_positions
        self._steps_per_position += (ratio - self._steps_per_position) / MEMORY


def _kind(num_positions: int, options: DecodingOptions) -> tuple[int, int]:
    return padded_width(num_positions), options.beam_size
