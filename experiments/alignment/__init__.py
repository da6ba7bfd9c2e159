"""Attention as an alignment of letters and sounds, against one that people made."""
