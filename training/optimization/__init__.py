"""Optimizers, learning rates and averages of the weights."""
