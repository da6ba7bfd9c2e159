"""Checkpoints of other toolkits, read as models of ours. Nothing that stands in them is executed."""
