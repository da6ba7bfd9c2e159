"""Attention: scores, weights, coverage, and copying by them."""
