"""Functions that the commands call: `attendant.train`, `attendant.evaluate` and `attendant.report`.

Begin with training.py. evaluation.py imports PyTorch only for runs: a server's environment, with its bundles, has none.
"""
