"""Run directories: what a training leaves, how it is resumed and how it is opened."""
