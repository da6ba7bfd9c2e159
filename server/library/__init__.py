"""Bundles in this process, without a server: `attendant.load`. It needs what the server needs; no torch.

The checks, the engine and the answers are the server's; the options and the types of answers are the client's.
"""

from attendant.runtime.errors import UserError
from attendant.server.library.model import Generation, Hypothesis, Model, Options, Score, load
from attendant_client import InvalidArgument, Sampling

__all__ = [
    "Generation",
    "Hypothesis",
    "InvalidArgument",
    "Model",
    "Options",
    "Sampling",
    "Score",
    "UserError",
    "load",
]
