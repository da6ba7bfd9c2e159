"""The encoder, its recurrent layers, and the bridge to the decoder's first state.

Shapes: B sources, S source positions, I inputs of a layer, E embedding size, D encoder size (H or 2 H, H being one
direction's), L decoder layers.
"""

import torch
from torch import Tensor, nn

from attendant.training.kernels import cells
from attendant.training.model.config import ModelConfig


class RecurrentLayer(nn.Module):
    """A recurrent layer over padded sources, in one direction or both; initial states are zeros.

    Each direction runs over the padded batch as a whole, the backward one over sources that were reversed within
    their lengths: padding then comes last in both and touches no valid position. Packed sequences take longer. They are
    used only for an LSTM whose last cells are needed, because torch returns those only at the end of a sequence.

    Attributes:
        forward_rnn, backward_rnn: a one-layer `nn.LSTM`, `nn.GRU` or `nn.RNN` each, where the weights are;
            `backward_rnn` is None in a one-directional layer.
        keeps_cells: returns an LSTM's last cells too.
    """

    def __init__(
        self, cell: cells.CellKind, input_size: int, hidden_size: int, *, bidirectional: bool, keeps_cells: bool = False
    ) -> None:
        super().__init__()
        rnn_class = cells.RNN_CLASSES[cell]
        self.cell = cell
        self.hidden_size = hidden_size
        self.keeps_cells = keeps_cells
        self.forward_rnn = rnn_class(input_size, hidden_size, batch_first=True)
        self.backward_rnn = rnn_class(input_size, hidden_size, batch_first=True) if bidirectional else None

    def forward(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, cells.CellState]:
        """Runs the layer.

        Args:
            inputs: [B, S, I].
            lengths: [B] int64, at least 1.

        Returns:
            outputs [B, S, D], arbitrary beyond the lengths; and the last states, each part [B, D]: the forward
            direction's at the last valid position, the backward direction's at the first. Parts: hidden, and the cell
            if it is kept.
        """
        outputs, final = self._run(self.forward_rnn, inputs, lengths)
        if self.backward_rnn is None:
            return outputs, final
        backward, backward_final = self._run(self.backward_rnn, reverse(inputs, lengths), lengths)
        finals = tuple(torch.cat(parts, -1) for parts in zip(final, backward_final, strict=True))
        return torch.cat([outputs, reverse(backward, lengths)], -1), finals

    def _run(self, rnn: nn.RNNBase, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, cells.CellState]:
        """Runs one direction: outputs [B, S, H] of inputs [B, S, I], and the last states' parts [B, H]."""
        if self.keeps_cells:
            return cells.unroll_unequal(rnn, inputs, lengths)
        hidden = cells.unroll(rnn, inputs)
        last = (lengths - 1).view(-1, 1, 1).expand(-1, 1, self.hidden_size)
        return hidden, (hidden.gather(1, last).squeeze(1),)


def reverse(inputs: Tensor, lengths: Tensor) -> Tensor:
    """Reverses each sequence [S, I] within its length; padding keeps its place. It is its own inverse."""
    positions = torch.arange(inputs.shape[1], device=inputs.device)
    ends = lengths.unsqueeze(1)
    mirrored = torch.where(positions < ends, ends - 1 - positions, positions)
    return inputs.gather(1, mirrored.unsqueeze(-1).expand_as(inputs))


class Encoder(nn.Module):
    """Layers on top of each other, dropout between them; `model.residual` adds a layer's input from the third on.

    A reversed source (Sutskever et al. 2014) is turned around before the first layer and back after the last, so that
    the memory's positions are the source's in either case.

    Every layer is called as `layer(inputs, lengths) -> (outputs, last states)`, see RecurrentLayer.forward. The
    exporter replaces the layers by its own.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden_size = config.encoder.hidden_size or config.hidden_size
        sizes = [config.embedding_size, *[config.memory_size] * (config.encoder.num_layers - 1)]
        self.reverses = config.encoder.reverse_source
        self.layers = nn.ModuleList(
            RecurrentLayer(
                config.cell,
                size,
                hidden_size,
                bidirectional=config.encoder.bidirectional,
                keeps_cells=config.cell == "lstm" and config.decoder.initial_state in ("final", "projected"),
            )
            for size in sizes
        )
        self.first_residual_layer = config.first_residual_layer
        self.dropout = cells.Dropout(config.dropout)

    def forward(self, embedded: Tensor, source_lengths: Tensor) -> tuple[Tensor, list[cells.CellState]]:
        """Encodes embedded sources [B, S, E] of lengths [B].

        Returns:
            outputs [B, S, D], arbitrary beyond the lengths; and each layer's last states, see RecurrentLayer.
        """
        hidden, finals = reverse(embedded, source_lengths) if self.reverses else embedded, []
        for index, layer in enumerate(self.layers):
            outputs, final = layer(self.dropout(hidden) if index else hidden, source_lengths)
            hidden = outputs + hidden if index >= self.first_residual_layer else outputs
            finals.append(final)
        return reverse(hidden, source_lengths) if self.reverses else hidden, finals


class Bridge(nn.Module):
    """hidden = tanh(W e + b) per decoder layer (Bahdanau et al. 2015, A.2.2); an LSTM's cell = W' e + b'.

    e is the last state of an encoder layer ("bridge"), of its backward direction alone ("backward", as in the paper),
    or the mean of the outputs ("mean": Sennrich et al. 2017, Nematus). "top" has one matrix for all: every decoder
    layer starts from tanh(W e + b) of the top encoder layer, an LSTM's cells too (Kreutzer et al. 2019). "projected"
    has one matrix for all layers' hidden states and one for their cells: W e + b (Ott et al. 2019, fairseq).
    Without weights: the last states as they are ("final": Sutskever et al. 2014), or "zeros".
    The tops of both stacks correspond; a deeper decoder's lower layers take the encoder's lowest.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind = config.decoder.initial_state
        self.hidden_size = config.hidden_size
        self.num_parts = len(cells.STATE_NAMES[config.cell])
        num_layers, num_encoder_layers = config.decoder.num_layers, config.encoder.num_layers
        self.sources = [max(0, layer + num_encoder_layers - num_layers) for layer in range(num_layers)]
        self.backward_size = config.memory_size // 2
        input_size = self.backward_size if self.kind == "backward" else config.memory_size
        num_weights = {"final": 0, "zeros": 0, "top": 1, "projected": self.num_parts}.get(self.kind, num_layers)
        output_size = config.hidden_size * (1 if self.kind in ("top", "projected") else self.num_parts)
        self.layers = nn.ModuleList(nn.Linear(input_size, output_size) for _ in range(num_weights))

    def forward(self, outputs: Tensor, source_mask: Tensor, finals: list[cells.CellState]) -> list[cells.CellState]:
        """Returns the first state of each decoder layer, parts [B, H].

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
        if self.kind == "projected":
            return [
                tuple(layer(part) for layer, part in zip(self.layers, finals[index], strict=True))
                for index in self.sources
            ]
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
    """Returns the mean [B, D] of outputs [B, S, D] over valid positions.

    As a product with two equal rows of weights: a sum over positions, or a product with one row, is rounded in another
    order if a batch has a single source (tests/parity/test_export.py).
    """
    mask = source_mask.to(outputs.dtype)
    weights = (mask / mask.sum(1, keepdim=True)).unsqueeze(1).expand(-1, 2, -1)
    return torch.matmul(weights, outputs)[:, 0]
