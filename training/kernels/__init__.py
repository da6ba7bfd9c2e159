"""The arithmetic of a training step: fast kernels, and the precision and device they run in."""
