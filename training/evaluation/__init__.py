"""Measures a model with the decoder that serves. Every result carries the protocol by which it was taken.

`decode_examples` gives outputs with their scores, `evaluate` every measurement of them. Its parts stand alone, for a
report or a notebook: `training.evaluation.metrics.take_statistics` takes a metric of outputs apart, and of that
`confidence_interval` gives its interval, `by_length` the metric per bin of source lengths, `compare` the difference of
two systems. What opens a run or a bundle is training/assessment/models.py.
"""

from attendant.training.evaluation.bootstrap import (
    DEFAULT_RESAMPLES,
    Difference,
    Interval,
    compare,
    confidence_interval,
)
from attendant.training.evaluation.decoding import Decoded, TextModel, decode_examples
from attendant.training.evaluation.evaluating import (
    Evaluation,
    EvaluationConfig,
    Measurement,
    describe_search,
    evaluate,
    search_options,
)
from attendant.training.evaluation.lengths import DEFAULT_EDGES, LengthBin, LengthUnit, by_length, source_lengths

__all__ = [
    "DEFAULT_EDGES",
    "DEFAULT_RESAMPLES",
    "Decoded",
    "Difference",
    "Evaluation",
    "EvaluationConfig",
    "Interval",
    "LengthBin",
    "LengthUnit",
    "Measurement",
    "TextModel",
    "by_length",
    "compare",
    "confidence_interval",
    "decode_examples",
    "describe_search",
    "evaluate",
    "search_options",
    "source_lengths",
]
