"""The encoder's recurrent layers as ONNX nodes that know the sources' lengths.

Shapes: B sources, S positions, I inputs, H hidden size of one direction, D = 1 or 2 directions, G = 4 (LSTM) or
3 (GRU) gates.

torch's exporter writes the recurrent nodes without `sequence_lens`: the backward direction then runs over the padding,
and a source's encoding depends on how wide its neighbours are.
"""

import copy
from typing import Final

import torch
from torch import Tensor, nn

from training.model import Seq2Seq
from training.model.recurrent import RecurrentLayer

NODE_VERSION: Final = 14
"""Of the ONNX operators LSTM and GRU (batch-major layouts came with it; nothing changed since)."""

GATE_ORDERS: Final = {
    # torch: input, forget, cell, output. ONNX: input, output, forget, cell.
    "lstm": ("LSTM", (0, 3, 1, 2)),
    # torch: reset, update, new. ONNX: update, reset, hidden.
    "gru": ("GRU", (1, 0, 2)),
}


class OnnxRecurrentLayer(nn.Module):
    """Stands in a `RecurrentLayer`'s place during export; same call, same weights, as one ONNX node."""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__()
        self.hidden_size = layer.hidden_size
        self.operator, gates = GATE_ORDERS[layer.cell]
        directions = [rnn for rnn in (layer.forward_rnn, layer.backward_rnn) if rnn is not None]
        self.num_directions = len(directions)

        def reordered(name: str) -> Tensor:
            """[D, G * H, ...] from each direction's [G * H, ...]."""
            blocks = [getattr(rnn, name).detach().chunk(len(gates)) for rnn in directions]
            return torch.stack([torch.cat([block[gate] for gate in gates]) for block in blocks])

        self.register_buffer("input_weights", reordered("weight_ih_l0"))
        self.register_buffer("recurrent_weights", reordered("weight_hh_l0"))
        self.register_buffer("biases", torch.cat([reordered("bias_ih_l0"), reordered("bias_hh_l0")], 1))

    def forward(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [B, S, D * H], zero beyond the lengths, and the last states [B, D * H]."""
        num_sources, width, _ = inputs.shape
        state_shape = (self.num_directions, num_sources, self.hidden_size)
        shapes = [(width, *state_shape), state_shape]
        attributes: dict[str, int | str] = {
            "hidden_size": self.hidden_size,
            "direction": "bidirectional" if self.num_directions == 2 else "forward",
        }
        if self.operator == "LSTM":
            shapes.append(state_shape)
        else:
            attributes["linear_before_reset"] = 1  # torch multiplies before the reset gate, cuDNN's way
        outputs, final, *_ = torch.onnx.ops.symbolic_multi_out(
            self.operator,
            (
                inputs.transpose(0, 1),
                self.input_weights,
                self.recurrent_weights,
                self.biases,
                lengths.to(torch.int32),
            ),
            attrs=attributes,
            dtypes=(torch.float32,) * len(shapes),
            shapes=shapes,
            version=NODE_VERSION,
        )
        return outputs.permute(2, 0, 1, 3).flatten(2), final.transpose(0, 1).flatten(1)


def with_onnx_layers(model: Seq2Seq) -> Seq2Seq:
    """A copy of `model`, for tracing, whose encoder's recurrent layers are ONNX nodes; `model` stays as it is."""
    traced = copy.deepcopy(model).eval()
    replaced = 0
    for module in list(traced.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, RecurrentLayer):
                setattr(module, name, OnnxRecurrentLayer(child))
                replaced += 1
    assert replaced, "the encoder has recurrent layers"
    return traced
