"""Rewrites a pair of fp32 graphs into one that multiplies and stores in fp16; see docs/cuda.md."""
