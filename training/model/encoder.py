"""The encoder: recurrent layers over the embedded source.

Shapes: B sources, S positions, E embedding size, D memory size.
"""

from torch import Tensor, nn

from training.model.config import ModelConfig
from training.model.recurrent import RecurrentLayer


class Encoder(nn.Module):
    """Layers on top of each other, dropout between them.

    Every layer is called as `layer(inputs, lengths) -> (outputs, last states)`, see RecurrentLayer.forward; the
    exporter puts its own in their place.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden_size = config.encoder.hidden_size or config.hidden_size
        sizes = [config.embedding_size, *[config.memory_size] * (config.encoder.num_layers - 1)]
        self.layers = nn.ModuleList(
            RecurrentLayer(config.cell, size, hidden_size, bidirectional=config.encoder.bidirectional) for size in sizes
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, embedded: Tensor, source_lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Encodes embedded sources [B, S, E] of lengths [B].

        Returns:
            memory [B, S, D], arbitrary beyond the lengths; and each layer's last states [B, D].
        """
        outputs, finals = embedded, []
        for index, layer in enumerate(self.layers):
            outputs, final = layer(self.dropout(outputs) if index else outputs, source_lengths)
            finals.append(final)
        return outputs, finals
