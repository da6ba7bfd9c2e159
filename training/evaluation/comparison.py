"""The difference of two systems on one test set, by the paired bootstrap (Koehn 2004, section 4)."""

from dataclasses import dataclass

import numpy as np

from attendant.training.evaluation.bootstrap import DEFAULT_RESAMPLES, Interval, percentiles, resampled_values
from attendant.training.evaluation.metrics import Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A metric of one system minus that of a baseline, on the same examples.

    Attributes:
        interval: of the difference; one that leaves 0 out says that it is hardly chance. None: no resamples.
        p_value: how often resampling would give a difference at least as large if there were none: the share of
            resamples that are as far from their mean (Riezler and Maxwell 2005), to either side. sacrebleu's paired
            bootstrap counts one side, and so prints about half of it where it is small.
    """

    metric: str
    value: float
    interval: Interval | None
    p_value: float | None


def compare(system: Statistics, baseline: Statistics, num_resamples: int = DEFAULT_RESAMPLES) -> Difference:
    """The difference of two systems, whose statistics are of one metric and of the same examples in the same order."""
    if (system.metric, len(system.rows)) != (baseline.metric, len(baseline.rows)):
        raise ValueError("only one metric of the same examples can be compared")
    value = system.value - baseline.value
    interval, p_value = None, None
    if num_resamples:
        differences = resampled_values(system, num_resamples) - resampled_values(baseline, num_resamples)
        as_far = np.abs(differences - differences.mean()) >= abs(value)
        interval, p_value = percentiles(differences), round((int(as_far.sum()) + 1) / (num_resamples + 1), 4)
    return Difference(metric=system.metric, value=round(value, 4), interval=interval, p_value=p_value)
