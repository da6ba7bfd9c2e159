"""The stepper whose state stays on a CUDA device. It has not run on a GPU yet: docs/cuda.md."""
