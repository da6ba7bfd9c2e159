"""One decoder step on a GPU, measured against PyTorch on the same one: benchmarks/gpu.sh."""
