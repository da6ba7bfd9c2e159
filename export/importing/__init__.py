"""Reads checkpoints of other toolkits as models of ours. Nothing in them is executed. Begin with checkpoint.py."""
