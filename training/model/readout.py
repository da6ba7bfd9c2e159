"""From a context and a decoder state to the vocabulary: the readout, or attentional layer, and the output layer.

Shapes: C context size, H decoder size, P readout size, E embedding size, V target vocabulary.

A new readout is a class here, its name in config.ReadoutKind and a line in `READOUTS`.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from attendant.training.kernels.cells import looped_linear
from attendant.training.kernels.loss import NEVER_GENERATED, logits_of
from attendant.training.model.config import ModelConfig, ReadoutKind

IMPOSSIBLE = -1e9
"""Logit of impossible symbols: finite, so that no arithmetic on it gives NaN; their probability is exactly zero."""


class Output(nn.Module):
    """logits = W x + b; PAD and BOS can't be generated.

    Attributes:
        weight: [V, P]. If None, the embeddings' weights are used (tied).
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
        """Returns logits [..., V] of inputs [..., P].

        Args:
            embedding_weight: [V, P] the target embeddings, used if they are tied.
        """
        return logits_of(inputs, *self.matrix_and_bias(embedding_weight))

    def matrix_and_bias(self, embedding_weight: Tensor) -> tuple[Tensor, Tensor]:
        """Returns W [V, P] and b [V]; in b, PAD and BOS are impossible."""
        return embedding_weight if self.weight is None else self.weight, self.bias + self.never


class Readout(nn.Module):
    """Combines a context, a decoder state and the embedded previous symbol to the vector of the prediction."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, context: Tensor, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Returns [..., P] from contexts [..., C], decoder states [..., H] and embedded symbols [..., E]."""

    def loop(self, num_rows: int, num_steps: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Returns `forward` for the steps of a training loop, of [R, C], [R, H] and [R, E]; R is `num_rows`."""
        return self.forward


class SumReadout(Readout):
    """s + c, which have the same width."""

    def forward(self, context: Tensor, hidden: Tensor, embedded: Tensor) -> Tensor:
        return hidden + context


class ConcatenationReadout(Readout):
    """[s; c], from which the output layer predicts directly: P = H + C."""

    def forward(self, context: Tensor, hidden: Tensor, embedded: Tensor) -> Tensor:
        return torch.cat([hidden, context], -1)


class ProjectedReadout(Readout):
    """A readout with a single product: P = H.

    Attributes:
        project: the product.
    """

    project: nn.Linear

    @abstractmethod
    def inputs(self, context: Tensor, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Returns the input of `project`, [..., its width], from the inputs of `forward`."""

    @abstractmethod
    def outputs(self, projected: Tensor, hidden: Tensor) -> Tensor:
        """Returns [..., H] from the result of `project` and decoder states [..., H]."""

    def forward(self, context: Tensor, hidden: Tensor, embedded: Tensor) -> Tensor:
        return self.outputs(self.project(self.inputs(context, hidden, embedded)), hidden)

    def loop(self, num_rows: int, num_steps: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        project = looped_linear(self.project, num_rows, num_steps)
        return lambda context, hidden, embedded: self.outputs(project(self.inputs(context, hidden, embedded)), hidden)


class LinearReadout(ProjectedReadout):
    """W_c [c; s] + b, as OpenNMT-py has it with additive attention (Klein et al. 2017); b if `readout_bias` is set."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        size = config.context_size + config.hidden_size
        self.project = nn.Linear(size, config.hidden_size, bias=config.decoder.readout_bias)

    def inputs(self, context: Tensor, hidden: Tensor, embedded: Tensor) -> Tensor:
        return torch.cat([context, hidden], -1)

    def outputs(self, projected: Tensor, hidden: Tensor) -> Tensor:
        return projected


class TanhReadout(LinearReadout):
    """The attentional vector tanh(W_c [c; s]) (Luong et al. 2015, eq. 5); with b inside if `readout_bias` is set."""

    def outputs(self, projected: Tensor, hidden: Tensor) -> Tensor:
        return torch.tanh(projected)


class AdditionReadout(ProjectedReadout):
    """s + W c: the state, corrected by the context as by a residual branch (He et al. 2016)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.project = nn.Linear(config.context_size, config.hidden_size, bias=False)

    def inputs(self, context: Tensor, hidden: Tensor, embedded: Tensor) -> Tensor:
        return context

    def outputs(self, projected: Tensor, hidden: Tensor) -> Tensor:
        return hidden + projected


class MaxoutReadout(ProjectedReadout):
    """Deep output: max over pairs of U s + V e + C c (Bahdanau et al. 2015, appendix A.2.2; Goodfellow et al. 2013).

    s is the state after the cell, on which the paper's equation (4) conditions the prediction.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        size = config.context_size + config.hidden_size + config.embedding_size
        self.project = nn.Linear(size, 2 * config.hidden_size)

    def inputs(self, context: Tensor, hidden: Tensor, embedded: Tensor) -> Tensor:
        return torch.cat([context, hidden, embedded], -1)

    def outputs(self, projected: Tensor, hidden: Tensor) -> Tensor:
        first, second = projected.chunk(2, -1)
        return torch.maximum(first, second)


READOUTS: Final[dict[ReadoutKind, type[Readout]]] = {
    "tanh": TanhReadout,
    "linear": LinearReadout,
    "addition": AdditionReadout,
    "sum": SumReadout,
    "concatenation": ConcatenationReadout,
    "maxout": MaxoutReadout,
}
