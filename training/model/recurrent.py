"""One recurrent layer of the encoder.

Shapes: B sources, S positions, I inputs, H hidden size of one direction, D = H or 2 H.
"""

import torch
from torch import Tensor, nn

from attendant.training.kernels.cells import RNN_CLASSES, CellKind


class RecurrentLayer(nn.Module):
    """A recurrent layer over padded sources, in one direction or both; initial states are zeros.

    Each direction runs over the padded batch as a whole, the backward one over sources that were reversed within
    their lengths: padding then comes last in both and touches no valid position. Packed sequences would take longer.

    Attributes:
        forward_rnn, backward_rnn: a one-layer `nn.LSTM`, `nn.GRU` or `nn.RNN` each, where the weights are;
            `backward_rnn` is None in a one-directional layer.
    """

    def __init__(self, cell: CellKind, input_size: int, hidden_size: int, *, bidirectional: bool) -> None:
        super().__init__()
        rnn_class = RNN_CLASSES[cell]
        self.cell = cell
        self.hidden_size = hidden_size
        self.forward_rnn = rnn_class(input_size, hidden_size, batch_first=True)
        self.backward_rnn = rnn_class(input_size, hidden_size, batch_first=True) if bidirectional else None

    def forward(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Runs the layer.

        Args:
            inputs: [B, S, I].
            lengths: [B] int64, at least 1.

        Returns:
            outputs [B, S, D], arbitrary beyond the lengths; and the last states [B, D]: the forward direction's at
            the last valid position, the backward direction's at the first.
        """
        outputs: Tensor = self.forward_rnn(inputs)[0]
        last = (lengths - 1).view(-1, 1, 1).expand(-1, 1, self.hidden_size)
        final = outputs.gather(1, last).squeeze(1)
        if self.backward_rnn is None:
            return outputs, final
        backward = reverse(self.backward_rnn(reverse(inputs, lengths))[0], lengths)
        return torch.cat([outputs, backward], -1), torch.cat([final, backward[:, 0]], -1)


def reverse(inputs: Tensor, lengths: Tensor) -> Tensor:
    """Turns each sequence [S, I] around within its length; padding stays where it is. Its own inverse."""
    positions = torch.arange(inputs.shape[1], device=inputs.device)
    ends = lengths.unsqueeze(1)
    mirrored = torch.where(positions < ends, ends - 1 - positions, positions)
    return inputs.gather(1, mirrored.unsqueeze(-1).expand_as(inputs))
