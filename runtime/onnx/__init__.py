"""The stepper on ONNX Runtime. Begin with `stepper.py`; `session.py` explains how arrays are written again."""
