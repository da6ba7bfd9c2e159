"""ONNX graphs of users: an encoder and a decoder step, exported by any tool, as a model that `export_model` takes.

`importing.py` completes the description of both graphs (`spec.py`) by trying them (`layout.py`), and makes of them a
module with `encode` and `step` (`module.py`), like a user's own in PyTorch. Everything else is the same for both.
"""
