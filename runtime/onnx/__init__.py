"""The stepper on ONNX Runtime: sessions, arrays that are written again, and the buffers of a batch's sources.

Begin with `stepper.py`; `buffers.py` explains its speed.
"""
