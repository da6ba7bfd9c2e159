"""The stepper on ONNX Runtime: sessions, bound runs, and the buffers that hold the sources of a batch."""
