"""Training speed beside other toolkits: python -m benchmarks.training."""
