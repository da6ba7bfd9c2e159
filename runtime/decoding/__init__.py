"""Decoding over a Stepper: options, the search, its hypotheses, and the batch that shares steps among requests.

Greedy search, beams, sampling, prefixes and scoring are one search. Begin with `batch.py`, which steps the model, and
`beam_search.py`, which advances the hypotheses.
"""
