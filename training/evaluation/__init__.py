"""Measures a model with the decoder that serves. Every result carries the protocol by which it was taken.

`decode_examples` gives outputs with their scores, `evaluate` every measurement of them. Reports and notebooks may use
its parts: `training.evaluation.metrics.take_statistics` returns a metric's statistics, from which
`confidence_interval` computes its interval, `by_length` the metric per bin of source lengths, and `compare` the
difference of two systems. session.py opens bundles, training/run/loading.py runs.
"""
