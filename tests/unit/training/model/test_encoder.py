import pytest
import torch
from torch import nn

from attendant.training.kernels.cells import CellKind
from attendant.training.model import ModelConfig
from attendant.training.model.encoder import Encoder, RecurrentLayer, reverse

LENGTHS = torch.tensor([3, 1, 5])


@pytest.mark.parametrize(("cell", "keeps_cells"), [("lstm", False), ("lstm", True), ("gru", False), ("rnn", False)])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_layer_equals_packed_sequences(cell: CellKind, keeps_cells: bool, bidirectional: bool) -> None:
    torch.manual_seed(0)
    layer = RecurrentLayer(cell, 4, 3, bidirectional=bidirectional, keeps_cells=keeps_cells)
    reference = type(layer.forward_rnn)(4, 3, batch_first=True, bidirectional=bidirectional)
    names = [name for name, _ in layer.forward_rnn.named_parameters()]
    for name in names:
        getattr(reference, name).data = getattr(layer.forward_rnn, name).data
        if bidirectional:
            getattr(reference, f"{name}_reverse").data = getattr(layer.backward_rnn, name).data
    inputs = torch.randn(3, 5, 4)
    outputs, finals = layer(inputs, LENGTHS)
    packed = nn.utils.rnn.pack_padded_sequence(inputs, LENGTHS, batch_first=True, enforce_sorted=False)
    expected, last = reference(packed)
    expected, _ = nn.utils.rnn.pad_packed_sequence(expected, batch_first=True)
    last = last[: 1 + keeps_cells] if cell == "lstm" else [last]
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(outputs[row, :length], expected[row, :length])
    torch.testing.assert_close(finals, tuple(torch.cat(list(part), -1) for part in last))


def test_reverse_keeps_the_padding_in_its_place() -> None:
    inputs = torch.arange(15).view(3, 5, 1)
    turned = reverse(inputs, LENGTHS)
    assert turned.squeeze(-1).tolist() == [[2, 1, 0, 3, 4], [5, 6, 7, 8, 9], [14, 13, 12, 11, 10]]
    assert torch.equal(reverse(turned, LENGTHS), inputs)


def test_a_reversed_source_is_read_from_its_end_and_keeps_its_places() -> None:
    def build(reverse_source: bool) -> Encoder:
        torch.manual_seed(0)
        encoder = {"num_layers": 2, "bidirectional": False, "reverse_source": reverse_source}
        return Encoder(ModelConfig(embedding_size=4, hidden_size=3, encoder=encoder)).eval()

    embedded = torch.randn(3, 5, 4)
    outputs, finals = build(True)(embedded, LENGTHS)
    mirrored, expected = build(False)(reverse(embedded, LENGTHS), LENGTHS)
    torch.testing.assert_close(outputs, reverse(mirrored, LENGTHS))
    torch.testing.assert_close(finals[-1], expected[-1])


@pytest.mark.parametrize("residual", [True, False])
def test_residual_connections_begin_at_the_third_layer(residual: bool) -> None:
    torch.manual_seed(0)
    encoder = Encoder(ModelConfig(embedding_size=4, hidden_size=3, residual=residual, encoder={"num_layers": 4})).eval()
    for layer in encoder.layers[2:]:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)  # such a layer adds nothing
    embedded = torch.randn(3, 5, 4)
    outputs, _ = encoder(embedded, LENGTHS)
    second, _ = encoder.layers[1](encoder.layers[0](embedded, LENGTHS)[0], LENGTHS)
    assert second.any()
    torch.testing.assert_close(outputs, second if residual else torch.zeros_like(second))
