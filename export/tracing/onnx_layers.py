"""The encoder's recurrent layers as ONNX nodes that know the sources' lengths.

Shapes: B sources, S positions, I inputs, H hidden size of one direction, D = 1 or 2 directions, G = 4 (LSTM), 3 (GRU)
or 1 (tanh RNN) gates.

torch's exporter writes the recurrent nodes without `sequence_lens`: the backward direction then runs over the padding,
and a source's encoding depends on how wide its neighbours are.
"""

import copy
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from attendant.training.model import Seq2Seq
from attendant.training.model.encoder import RecurrentLayer

NODE_VERSION: Final = 14
"""Of the ONNX operators LSTM, GRU and RNN."""

OPERATORS: Final = {
    # torch: input, forget, cell, output. ONNX: input, output, forget, cell.
    "lstm": ("LSTM", (0, 3, 1, 2), 3),
    # torch: reset, update, new. ONNX: update, reset, hidden.
    "gru": ("GRU", (1, 0, 2), 2),
    "rnn": ("RNN", (0,), 2),
}
"""Name, order of the gates and number of outputs: all states, the last ones and an LSTM's last cells."""


class OnnxRecurrentLayer(nn.Module):
    """Stands in a `RecurrentLayer`'s place during export; same call, same weights, as one ONNX node."""

    input_weights: Tensor
    recurrent_weights: Tensor
    biases: Tensor

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__()
        self.hidden_size = layer.hidden_size
        self.num_final_parts = 2 if layer.keeps_cells else 1
        self.operator, gates, self.num_outputs = OPERATORS[layer.cell]
        directions = [rnn for rnn in (layer.forward_rnn, layer.backward_rnn) if rnn is not None]
        self.num_directions = len(directions)

        def reordered(name: str) -> Tensor:
            """[D, G * H, ...] from each direction's [G * H, ...]."""
            blocks = [getattr(rnn, name).detach().chunk(len(gates)) for rnn in directions]
            return torch.stack([torch.cat([block[gate] for gate in gates]) for block in blocks])

        self.register_buffer("input_weights", reordered("weight_ih_l0"))
        self.register_buffer("recurrent_weights", reordered("weight_hh_l0"))
        self.register_buffer("biases", torch.cat([reordered("bias_ih_l0"), reordered("bias_hh_l0")], 1))

    def forward(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """A layer over inputs [B, S, I] float32 of lengths [B] int64.

        Returns:
            Outputs [B, S, D * H] float32, zero beyond the lengths, and the last states, each part [B, D * H]: hidden,
            and the cell where it is kept.
        """
        # ONNX Runtime's RNN takes another path, with other rounding, for a batch of one: it gets a row more.
        spare = self.operator == "RNN"
        if spare:
            inputs, lengths = torch.cat([inputs, inputs[:1]]), torch.cat([lengths, lengths[:1]])
        outputs, *finals = self._node(inputs.transpose(0, 1), lengths.to(torch.int32))
        outputs = outputs.permute(2, 0, 1, 3).flatten(2)
        parts = [final.transpose(0, 1).flatten(1) for final in finals[: self.num_final_parts]]
        return (outputs[:-1], (parts[0][:-1],)) if spare else (outputs, tuple(parts))

    def _node(self, inputs: Tensor, lengths: Tensor) -> Sequence[Tensor]:
        """Outputs [S, D, B, H], last states and, of an LSTM, last cells [D, B, H] each, of inputs [S, B, I]."""
        width, num_sources, _ = inputs.shape
        final_shape = (self.num_directions, num_sources, self.hidden_size)
        attributes: dict[str, Any] = {
            "hidden_size": self.hidden_size,
            "direction": "bidirectional" if self.num_directions == 2 else "forward",
        }
        if self.operator == "GRU":
            # The reset gate after the recurrent product: torch's way, and cuDNN's.
            attributes["linear_before_reset"] = 1
        outputs: Sequence[Tensor] = torch.onnx.ops.symbolic_multi_out(
            self.operator,
            (inputs, self.input_weights, self.recurrent_weights, self.biases, lengths),
            attrs=attributes,
            dtypes=(torch.float32,) * self.num_outputs,
            shapes=[(width, *final_shape), *[final_shape] * (self.num_outputs - 1)],
            version=NODE_VERSION,
        )
        return outputs


def with_onnx_layers(model: Seq2Seq) -> Seq2Seq:
    """A copy of `model`, for tracing, whose encoder's recurrent layers are ONNX nodes; `model` stays as it is."""
    traced = copy.deepcopy(model).eval()
    for module in list(traced.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, RecurrentLayer):
                setattr(module, name, OnnxRecurrentLayer(child))
    assert any(isinstance(one, OnnxRecurrentLayer) for one in traced.modules()), "the encoder has recurrent layers"
    return traced
