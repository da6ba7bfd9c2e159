"""Measures a model with the decoder that serves. Every result carries the protocol by which it was taken.

`decode_examples` gives outputs with their scores, `evaluate` every measurement of them. Its parts stand alone, for a
report or a notebook: `training.evaluation.metrics.take_statistics` takes a metric of outputs apart, and of that
`confidence_interval` gives its interval, `by_length` the metric per bin of source lengths, `compare` the difference of
two systems. session.py opens bundles, training/run/loading.py runs.
"""
