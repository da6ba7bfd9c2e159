"""Search over a Stepper: options, hypotheses, strategies, and the batch that shares steps among requests."""
