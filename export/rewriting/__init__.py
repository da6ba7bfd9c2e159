"""Rewrites a pair of fp32 graphs into one of another precision; what int8 and fp16 share stands here."""
