"""Training beside other toolkits, and its kernels beside the plain way: python -m benchmarks training."""
