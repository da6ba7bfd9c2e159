"""Rewrites a pair of fp32 graphs into one whose products are of integers; see docs/architecture.md."""
