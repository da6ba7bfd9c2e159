"""The arithmetic of a training step: cells, loss, fast kernels, and the precision and device they run in.

Begin with training/model/reference.py, which computes a training step plainly. `LoopedProduct` takes a weight's
gradient once for all steps of a loop, `output_loss` never keeps the logits, and `fast_products` picks the faster
library on a CPU. `python -m benchmarks training --only kernels` measures what each gains.
"""
