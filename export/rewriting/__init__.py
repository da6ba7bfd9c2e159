"""Rewrites a pair of fp32 graphs to another precision. Begin with int8.py or fp16.py, which share bounds.py."""
