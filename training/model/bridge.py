"""The decoder's first state, from what the encoder found.

Shapes: B sources, S positions, D encoder size, L decoder layers, H decoder size.
"""

import torch
from torch import Tensor, nn

from attendant.training.kernels.cells import STATE_NAMES, CellState
from attendant.training.model.config import ModelConfig


class Bridge(nn.Module):
    """hidden = tanh(W e + b) per decoder layer (Bahdanau et al. 2015, A.2.2); an LSTM's cell = W' e + b'.

    e is the last state of an encoder layer ("bridge"), of its backward direction alone ("backward", as in the paper),
    or the mean of the outputs ("mean": Sennrich et al. 2017, Nematus). "top" has one matrix for all: every decoder
    layer starts from tanh(W e + b) of the top encoder layer, an LSTM's cells too (Kreutzer et al. 2019).
    Without weights: the last states as they are ("final": Sutskever et al. 2014), or "zeros".
    The tops of both stacks correspond; a deeper decoder's lower layers take the encoder's lowest.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind = config.decoder.initial_state
        self.hidden_size = config.hidden_size
        self.num_parts = len(STATE_NAMES[config.cell])
        num_layers, num_encoder_layers = config.decoder.num_layers, config.encoder.num_layers
        self.sources = [max(0, layer + num_encoder_layers - num_layers) for layer in range(num_layers)]
        self.backward_size = config.memory_size // 2
        input_size = self.backward_size if self.kind == "backward" else config.memory_size
        num_weights = {"final": 0, "zeros": 0, "top": 1}.get(self.kind, num_layers)
        output_size = config.hidden_size * (1 if self.kind == "top" else self.num_parts)
        self.layers = nn.ModuleList(nn.Linear(input_size, output_size) for _ in range(num_weights))

    def forward(self, outputs: Tensor, source_mask: Tensor, finals: list[CellState]) -> list[CellState]:
        """The first state of each decoder layer, parts [B, H].

        Args:
            outputs: [B, S, D].
            source_mask: [B, S] True where valid.
            finals: each encoder layer's last states, parts [B, D].
        """
        if self.kind == "zeros":
            zeros = outputs.new_zeros(outputs.shape[0], self.hidden_size)
            return [(zeros,) * self.num_parts for _ in self.sources]
        if self.kind == "final":
            return [finals[index] for index in self.sources]
        if self.kind == "top":
            (layer,) = self.layers
            return [(torch.tanh(layer(finals[-1][0])),) * self.num_parts for _ in self.sources]
        last = [hidden for hidden, *_ in finals]
        if self.kind == "mean":
            last = [masked_mean(outputs, source_mask)] * len(finals)
        elif self.kind == "backward":
            last = [hidden[:, -self.backward_size :] for hidden in last]
        states = []
        for layer, index in zip(self.layers, self.sources, strict=True):
            hidden, *cell = layer(last[index]).chunk(self.num_parts, -1)
            states.append((torch.tanh(hidden), *cell))
        return states


def masked_mean(outputs: Tensor, source_mask: Tensor) -> Tensor:
    """The mean [B, D] of outputs [B, S, D] over valid positions.

    As a product with two equal rows of weights: a sum over positions, or a product with one row, is rounded in another
    order where a source stands alone (tests/parity/test_export.py).
    """
    mask = source_mask.to(outputs.dtype)
    weights = (mask / mask.sum(1, keepdim=True)).unsqueeze(1).expand(-1, 2, -1)
    return torch.matmul(weights, outputs)[:, 0]
