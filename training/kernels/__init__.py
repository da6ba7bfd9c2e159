"""The arithmetic of a training step: cells, loss, fast kernels, and the precision and device they run in.

What the kernels compute stands plainly in cells.py, loss.py and training/model/reference.py. Read those first. `looped`
takes a weight's gradient once for all steps of a loop, `output_loss` never keeps the logits, and `products` picks the
faster library on a CPU. Each is kept for what it gains, which benchmarks/training/kernels.py measures.
"""
