"""The Open Inference Protocol: its tensors and parameters become requests like all others, and answers tensors."""
