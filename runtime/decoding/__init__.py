"""Decoding over a Stepper: options, the search, its hypotheses, and the batch that shares steps among requests."""
