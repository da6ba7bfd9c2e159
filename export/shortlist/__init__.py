"""Vocabulary selection: lists of target symbols learned from the training pairs, and a step over them."""
