"""The stepper whose state stays on a CUDA device. It has not run on a GPU yet: docs/cuda.md.

Begin with `stepper.py`; `state.py` has the buffers of the state and the graphs that reorder it.
"""
