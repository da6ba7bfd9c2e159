"""Sources far longer than those of training: where attention loses its place."""
