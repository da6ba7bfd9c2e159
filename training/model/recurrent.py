"""One recurrent layer of the encoder.

Shapes: B sources, S positions, I inputs, H hidden size of one direction, D = H or 2 H.
"""

import torch
from torch import Tensor, nn

from attendant.training.kernels.cells import RNN_CLASSES, CellKind, CellState, unroll, unroll_unequal


class RecurrentLayer(nn.Module):
    """A recurrent layer over padded sources, in one direction or both; initial states are zeros.

    Each direction runs over the padded batch as a whole, the backward one over sources that were reversed within
    their lengths: padding then comes last in both and touches no valid position. Packed sequences take longer; only an
    LSTM whose last cells are wanted needs them, since torch tells no others.

    Attributes:
        forward_rnn, backward_rnn: a one-layer `nn.LSTM`, `nn.GRU` or `nn.RNN` each, where the weights are;
            `backward_rnn` is None in a one-directional layer.
        keeps_cells: an LSTM's last cells are wanted.
    """

    def __init__(
        self, cell: CellKind, input_size: int, hidden_size: int, *, bidirectional: bool, keeps_cells: bool = False
    ) -> None:
        super().__init__()
        rnn_class = RNN_CLASSES[cell]
        self.cell = cell
        self.hidden_size = hidden_size
        self.keeps_cells = keeps_cells
        self.forward_rnn = rnn_class(input_size, hidden_size, batch_first=True)
        self.backward_rnn = rnn_class(input_size, hidden_size, batch_first=True) if bidirectional else None

    def forward(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, CellState]:
        """Runs the layer.

        Args:
            inputs: [B, S, I].
            lengths: [B] int64, at least 1.

        Returns:
            outputs [B, S, D], arbitrary beyond the lengths; and the last states, each part [B, D]: the forward
            direction's at the last valid position, the backward direction's at the first. Parts: hidden, and the cell
            where it is kept.
        """
        outputs, final = self._run(self.forward_rnn, inputs, lengths)
        if self.backward_rnn is None:
            return outputs, final
        backward, backward_final = self._run(self.backward_rnn, reverse(inputs, lengths), lengths)
        finals = tuple(torch.cat(parts, -1) for parts in zip(final, backward_final, strict=True))
        return torch.cat([outputs, reverse(backward, lengths)], -1), finals

    def _run(self, rnn: nn.RNNBase, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, CellState]:
        """One direction: outputs [B, S, H] of inputs [B, S, I], and the last states' parts [B, H]."""
        if self.keeps_cells:
            return unroll_unequal(rnn, inputs, lengths)
        hidden = unroll(rnn, inputs)
        last = (lengths - 1).view(-1, 1, 1).expand(-1, 1, self.hidden_size)
        return hidden, (hidden.gather(1, last).squeeze(1),)


def reverse(inputs: Tensor, lengths: Tensor) -> Tensor:
    """Turns each sequence [S, I] around within its length; padding stays where it is. Its own inverse."""
    positions = torch.arange(inputs.shape[1], device=inputs.device)
    ends = lengths.unsqueeze(1)
    mirrored = torch.where(positions < ends, ends - 1 - positions, positions)
    return inputs.gather(1, mirrored.unsqueeze(-1).expand_as(inputs))
