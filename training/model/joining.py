"""How a context and a decoder state become the vector that makes the prediction.

Shapes: D memory size, H decoder size.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from training.model.config import ModelConfig
from training.model.looped import looped_linear


class Joining(nn.Module):
    """The attentional vector tanh(W_c [c; s]) (Luong et al. 2015, eq. 5)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.project = nn.Linear(config.memory_size + config.hidden_size, config.hidden_size, bias=False)

    def forward(self, context: Tensor, hidden: Tensor) -> Tensor:
        """Joins contexts [..., D] and decoder states [..., H] to [..., H]."""
        return torch.tanh(self.project(torch.cat([context, hidden], -1)))

    def loop(self, num_rows: int, num_steps: int) -> Callable[[Tensor, Tensor], Tensor]:
        """`forward` for one step after the other of a loop of training; see LoopedProduct."""
        project = looped_linear(self.project, num_rows, num_steps)
        return lambda context, hidden: torch.tanh(project(torch.cat([context, hidden], -1)))
