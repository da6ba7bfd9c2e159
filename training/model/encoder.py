"""The encoder: recurrent layers over the embedded source.

Shapes: B sources, S positions, E embedding size, D memory size.
"""

from torch import Tensor, nn

from attendant.training.kernels.cells import CellState
from attendant.training.model.config import ModelConfig
from attendant.training.model.dropout import Dropout
from attendant.training.model.recurrent import RecurrentLayer, reverse


class Encoder(nn.Module):
    """Layers on top of each other, dropout between them; `model.residual` says what is added from the third on.

    A reversed source (Sutskever et al. 2014) is turned around before the first layer and back after the last, so that
    the memory's positions are the source's in either case.

    Every layer is called as `layer(inputs, lengths) -> (outputs, last states)`, see RecurrentLayer.forward; the
    exporter puts its own in their place.
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
                keeps_cells=config.hands_over_cells,
            )
            for size in sizes
        )
        self.first_residual_layer = config.first_residual_layer
        self.dropout = Dropout(config.dropout)

    def forward(self, embedded: Tensor, source_lengths: Tensor) -> tuple[Tensor, list[CellState]]:
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
