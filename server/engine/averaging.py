"""The moving average by which an engine learns how long its work takes. Pure."""

MAX_RISE = 2.0
"""A single value counts as at most this many times the average: more is an outlier, or comes again."""


def averaged(average: float | None, value: float, weight: float) -> float:
    """An exponential moving average after another value.

    Args:
        average: before; None: this is the first value.
        weight: of the value; 0 to 1.
    """
    return value if average is None else average + weight * (min(value, MAX_RISE * average) - average)
