"""Turns a trained run into a bundle: two ONNX graphs, verified by the very loader and stepper that serve."""
