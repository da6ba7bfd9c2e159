"""From the decoder's vector to the vocabulary.

Shapes: P readout size, V target vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.training.kernels.loss import NEVER_GENERATED

IMPOSSIBLE = -1e9
"""Logit of what can't be: finite, so that no arithmetic on it gives NaN; its probability is exactly zero."""


class Output(nn.Module):
    """logits = W x + b; PAD and BOS can't be generated.

    Attributes:
        weight: [V, P]; None where the embeddings' weights serve (tied).
    """

    never: Tensor

    def __init__(self, input_size: int, vocabulary_size: int, *, tied: bool) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary_size, input_size))
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))
        never = torch.zeros(vocabulary_size)
        never[list(NEVER_GENERATED)] = IMPOSSIBLE
        self.register_buffer("never", never, persistent=False)

    def forward(self, inputs: Tensor, embedding_weight: Tensor) -> Tensor:
        """Logits [..., V] of inputs [..., P].

        Args:
            embedding_weight: [V, P] the target embeddings, used where they are tied.
        """
        return F.linear(inputs, *self.matrix_and_bias(embedding_weight))

    def matrix_and_bias(self, embedding_weight: Tensor) -> tuple[Tensor, Tensor]:
        """W [V, P] and b [V], b with what can't be generated."""
        return embedding_weight if self.weight is None else self.weight, self.bias + self.never
