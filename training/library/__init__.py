"""Training and evaluation as functions, `attendant.train` and `attendant.evaluate`, which the commands call.

Begin with training.py. evaluation.py imports PyTorch only for runs: a server's environment, with its bundles, has none.
"""
