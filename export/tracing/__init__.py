"""The encoder and the decoder step of a PyTorch model as fp32 ONNX graphs."""
